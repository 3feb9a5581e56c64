"""Text models within models with images give transformers' tokens for prompts of text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import VOCAB_SIZE, byte_tokenizer, greedy

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.execution.models.registry import parse_model_config
from splitfuse.engine.execution.models.wrappers import NOTE

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
QWEN: dict[str, Any] = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
QWEN_IDS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
DELTA: dict[str, Any] = {
    "model_type": "qwen3_5_text", "head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
WINDOWS: dict[str, Any] = {"sliding_window": 19, "layer_types": ["sliding_attention", "full_attention"]}
# Class -> changes of the text, of the images' encoder, and fields of the whole.
WRAPPERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Gemma3": ({"head_dim": 16, "sliding_window": 37, "query_pre_attn_scalar": 16}, VISION, {"mm_tokens_per_image": 4}),
    "InternVL": ({"model_type": "qwen2"}, VISION | {"image_size": [28, 28], "patch_size": [14, 14]}, {}),
    "Lfm2Vl": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        VISION | {"model_type": "siglip2_vision_model", "num_patches": 4},
        {"projector_hidden_size": 32},
    ),
    "Mistral3": ({"model_type": "mistral", "head_dim": 16}, VISION | {"model_type": "pixtral"}, {}),
    "Qwen2_5_VL": ({"rope_parameters": SECTIONS}, QWEN, QWEN_IDS),
    "Qwen3VL": (
        {"head_dim": 16, "rope_parameters": SECTIONS | {"mrope_interleaved": True}},
        QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        QWEN_IDS,
    ),
    "SmolVLM": ({"model_type": "llama"}, VISION, {}),
    "Exaone4_5_": (
        {"model_type": "exaone4", **WINDOWS},
        QWEN | {"num_key_value_heads": 1, "fullatt_block_indexes": [0]},
        {"image_token_id": 5, "video_token_id": 6},
    ),
    "Gemma4Unified": (
        {
            "head_dim": 16, "global_head_dim": 24, "pad_token_id": 0, "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0, **WINDOWS,
        },
        {"mm_embed_dim": 64, "mm_posemb_size": 16, "output_proj_dims": 64},
        {"image_token_id": 5, "video_token_id": 6, "audio_token_id": 7, "audio_config": None},
    ),
    "Lfm3Vl": (
        {"model_type": "lfm3", "head_dim": 16, "layer_types": ["conv", "sliding_attention"], "sliding_window": 19},
        {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        {"image_token_id": 5},
    ),
    "MiniCPMV4_6": (DELTA, VISION | {"insert_layer_id": 0}, {}),
    "NemotronH_Omni_Reasoning_V3_": (
        {
            "model_type": "nemotron_h", "layers_block_type": ["mamba", "attention"], "num_hidden_layers": 2,
            "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "head_dim": 16,
        },
        {
            "model_type": "radio", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 16, "video_temporal_patch_size": 2,
        },
        {"projector_hidden_size": 32, "vision_hidden_size": 32},
    ),
    "Qwen3VLMoe": (
        {
            "head_dim": 16, "rope_parameters": SECTIONS | {"mrope_interleaved": True}, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 40, "decoder_sparse_step": 1,
        },
        QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        QWEN_IDS,
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_s_text_gives_transformers_tokens(name: str, tmp_path: Path) -> None:
    """Positions of text are the same in all sections of a rope for time, height and width."""
    text, vision, whole = WRAPPERS[name]
    config = getattr(transformers, f"{name}Config")(text_config=TEXT | text, vision_config=vision, **whole)
    torch.manual_seed(1)
    make: Callable[[Any], Any] = getattr(transformers, f"{name}ForConditionalGeneration", None) or getattr(
        transformers, name.removesuffix("_")
    )
    model = make(config).eval()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    llm, prompt = LLM(str(tmp_path), dtype="float32"), [*range(20, 70)]
    [output] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert output.outputs[0].token_ids == greedy(model, prompt, 8)


def test_fields_that_published_files_leave_out_are_transformers_defaults() -> None:
    """Read what the config.json of gemma-3-4b-it says of its text."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    config = parse_model_config(raw | {"eos_token_id": [1, 106]}, generation={})
    theirs = transformers.Gemma3TextConfig(**text)
    assert (config.architecture, config.description) == ("Gemma3ForCausalLM", NOTE)
    for ours, name in (("num_heads", "num_attention_heads"), ("num_kv_heads", "num_key_value_heads")):
        assert getattr(config, ours) == getattr(theirs, name)
    assert (config.vocab_size, config.head_dim) == (theirs.vocab_size, theirs.head_dim)
    assert (config.max_position_embeddings, config.eos_token_ids) == (theirs.max_position_embeddings, (1, 106))
