"""Published config.json files: our numbers are transformers', and we read exactly the tensors that it has."""

import json
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from real_configs import REAL_CONFIGS
from safetensors.torch import save_file
from tiny_models import CONFIGS, HYBRIDS
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.decoder import Decoder
from splitfuse.engine.execution.models.falcon_h1 import AttentionBesideMamba
from splitfuse.engine.execution.models.latent_decoder import LatentAttention
from splitfuse.engine.execution.models.layer_states import SharedKV, paged_parts
from splitfuse.engine.execution.models.layers import Attention, Normed, Scaled
from splitfuse.engine.execution.models.registry import (
    MODELS,
    families_table,
    model_class,
    parse_model_config,
    read_model_config,
)
from splitfuse.engine.execution.models.rope import rope_table
from splitfuse.engine.formats.weights import DummySource

pytestmark = pytest.mark.sampled(4)


class MetaSource:
    """WeightSource of tensors without memory; records which were taken."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.shapes: dict[str, tuple[int, ...]] = {}

    def has(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, device="meta", dtype=torch.bfloat16)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> None:
        return None

    def unread(self) -> list[str]:
        return sorted(self._names - self.shapes.keys())


def their_whole_config(name: str) -> PretrainedConfig:
    raw = deepcopy(REAL_CONFIGS[name])  # transformers writes into it
    config: PretrainedConfig = CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    return config


def their_config(name: str) -> PretrainedConfig:
    config: PretrainedConfig = their_whole_config(name).get_text_config()
    return config


def needs_timm(name: str) -> bool:
    """True for a model whose encoder is in a package that the tests do without."""
    return bool(REAL_CONFIGS[name]["model_type"] == "gemma3n")


@lru_cache
def their_model(name: str) -> PreTrainedModel:
    config = their_whole_config(name)
    is_whole = "text_config" in REAL_CONFIGS[name] and not needs_timm(name)
    auto = AutoModelForImageTextToText if is_whole else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config if is_whole else config.get_text_config())


def is_encoders(key: str) -> bool:
    """True for parts of encoders of images and sound, and of what brings their results to the text part."""
    parts = {"visual", "vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_model"}
    return not parts.isdisjoint(key.split(".")) or key.startswith("multi_modal_projector")


def their_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes in transformers' checkpoint: experts one by one, and no tied head."""
    model = their_model(name)
    published = revert_weight_conversion(model, model.state_dict())
    shapes = {key: tuple(tensor.shape) for key, tensor in published.items() if not is_encoders(key)}
    if model.config.get_text_config().tie_word_embeddings:
        del shapes["lm_head.weight"]
    if needs_timm(name):  # the text part, under its names within the whole
        shapes = {key.replace("model.", "model.language_model.", 1): shape for key, shape in shapes.items()}
    return shapes


def our_config(name: str) -> ModelConfig:
    return parse_model_config(REAL_CONFIGS[name], generation={})


def our_model(config: ModelConfig, names: set[str]) -> tuple[Decoder, MetaSource]:
    source = MetaSource(names)
    build = model_class(config.architecture)
    model = build(config, source, device=torch.device("meta"), max_model_len=16, dtype=torch.float32)
    return model, source


def attentions(model: Decoder) -> list[tuple[int, Attention | LatentAttention]]:
    """Return the attention of each layer that has one, with the layer's index."""
    found = (layer.attention for layer in model._layers)
    parts = [part.part if isinstance(part, Normed | Scaled) else part for part in found]
    parts = [part.attention if isinstance(part, AttentionBesideMamba) else part for part in parts]
    with_attention = [
        (index, part) for index, part in enumerate(parts) if isinstance(part, Attention | LatentAttention)
    ]
    states = model.config.layer_states
    assert len(with_attention) == len(paged_parts(states)) + sum(isinstance(state, SharedKV) for state in states)
    return with_attention


def test_the_page_of_models_has_the_registrys_table() -> None:
    page = Path(__file__).parents[4] / "server" / "docs" / "models.md"
    assert families_table() in page.read_text(), "python -m splitfuse.engine.execution.models.registry prints the table"


def test_every_family_has_a_published_model_and_a_tiny_one() -> None:
    assert {raw["architectures"][0] for raw in REAL_CONFIGS.values()} == set(MODELS)
    tiny = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] for config in (CONFIGS | HYBRIDS).values()}
    assert tiny == {name.replace("ForConditionalGeneration", "ForCausalLM") for name in MODELS}


def test_gemma_3n_has_defaults_of_its_own_before_gemma_2s() -> None:
    names = ("sliding_window", "max_position_embeddings")
    raw = {key: value for key, value in REAL_CONFIGS["google/gemma-3n-E2B-it"].items() if key not in names}
    if "text_config" in raw:
        raw["text_config"] = {key: value for key, value in raw["text_config"].items() if key not in names}
    config = parse_model_config(raw, generation={})
    theirs = CONFIG_MAPPING["gemma3n_text"]()
    assert (max(config.sliding_windows), config.max_position_embeddings) == tuple(getattr(theirs, n) for n in names)


def test_phi_moe_has_two_spellings() -> None:
    raw = REAL_CONFIGS["microsoft/Phi-3.5-MoE-instruct"] | {"architectures": ["PhiMoEForCausalLM"]}
    assert parse_model_config(raw, generation={}).architecture == "PhimoeForCausalLM"


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_dummy_norms_are_ones_and_biases_zeros(name: str) -> None:
    source, model = DummySource(dtype=torch.float32, seed=1), their_model(name)
    for key, module in model.named_modules():
        if is_encoders(key):
            continue
        is_norm = "Norm" in type(module).__name__
        for part, parameter in module.named_parameters(recurse=False):
            tensor = source.take(f"{key}.{part}", (4,) * parameter.ndim)
            expected = 0.0 if part == "bias" else 1.0 if is_norm else None
            assert (tensor == expected).all() if expected is not None else tensor.std() > 0.001, f"{key}.{part}"


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_names_and_shapes_are_the_checkpoints(name: str) -> None:
    config, expected = our_config(name), their_shapes(name)
    _, source = our_model(config, set(expected))
    constants = {key for key in expected if key.endswith(("act_fn.beta", "act_fn.eps"))}  # Apertus's, never read
    assert source.shapes == {key: shape for key, shape in expected.items() if key not in constants}


@pytest.mark.parametrize("name", ["openai-community/gpt2", "facebook/opt-125m", "google/gemma-2-2b"])
def test_a_base_models_names_do_as_well(name: str) -> None:
    prefix = model_class(our_config(name).architecture).names.prefix
    expected = {key.removeprefix(prefix): shape for key, shape in their_shapes(name).items()}
    _, source = our_model(our_config(name), set(expected))
    assert source.shapes == expected


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_scales_and_windows_are_theirs(name: str) -> None:
    model, _ = our_model(our_config(name), set(their_shapes(name)))
    config = their_config(name)
    modules = [(key, module) for key, module in their_model(name).named_modules() if not is_encoders(key)]
    theirs = [module for key, module in modules if key.endswith((".self_attn", ".attn"))]
    for place, (index, attention) in enumerate(attentions(model)):
        window = getattr(config, "sliding_window", None) if config.model_type != "llama" else None
        kinds = getattr(config, "layer_types", None)
        if kinds and kinds[index] == "full_attention":
            window = None
        assert attention.args.sliding_window == (window or 0)
        scale = theirs[place].scaling if theirs else model.config.head_dim**-0.5
        assert attention.args.scale == pytest.approx(scale)
        # Gemma 3 has the field, does not use it, and sets it to null.
        assert attention.args.softcap == (getattr(config, "attn_logit_softcapping", None) or 0.0)


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_transformers_own_spelling_of_the_config_reads_the_same(name: str) -> None:
    """save_pretrained writes rope_parameters instead of rope_theta and rope_scaling, and all defaults."""
    ours = our_config(name)
    saved = {**their_whole_config(name).to_dict(), "architectures": REAL_CONFIGS[name]["architectures"]}
    for field in ("dtype", "torch_dtype"):
        saved.pop(field, None)
    theirs = parse_model_config(saved, generation={"eos_token_id": None})

    def numbers(config: ModelConfig) -> dict[str, Any]:
        skipped = ("hf_config", "ropes", "dtype", "eos_token_ids")
        return {key: value for key, value in vars(config).items() if key not in skipped}

    assert numbers(theirs) == numbers(ours)
    assert [vars(rope) for rope in theirs.ropes] == [vars(rope) for rope in ours.ropes]


def rotary(name: str, positions: list[int], layer_type: str) -> Tensor:
    """Return transformers' cosines and sines in our layout."""
    named = [(key, module) for key, module in their_model(name).named_modules() if not is_encoders(key)]
    modules = [module for key, module in named if key.endswith((".rotary_emb", ".pos_emb"))]
    module = type(modules[0])(their_config(name))
    kind = {"layer_type": layer_type} if layer_type in getattr(module, "layer_types", ()) else {}
    turned = module(torch.zeros(1), torch.tensor([positions]), **kind)
    if isinstance(turned, Tensor):  # complex numbers
        return torch.cat((turned[0].real, turned[0].imag), dim=-1)
    cos, sin = turned
    half = cos.shape[-1] // 2
    if type(module).__name__.startswith("GptOss"):  # no copy of the first half
        return torch.cat((cos[0], sin[0]), dim=-1)
    if type(module).__name__.startswith("Cohere"):  # pairs side by side
        return torch.cat((cos[0, :, ::2], sin[0, :, ::2]), dim=-1)
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_rope_tables_are_theirs(name: str) -> None:
    ours = our_config(name)
    if not ours.ropes[0].rotary_dim:
        assert model_class(ours.architecture).partial_rotary
        return
    if ours.architecture == "KimiLinearForCausalLM":  # no position turns anything
        table = rope_table(ours.ropes[0], num_positions=9, device=torch.device("cpu"))
        assert torch.equal(table, torch.cat((torch.ones(9, 32), torch.zeros(9, 32)), dim=1))
        return
    for rope in dict.fromkeys(ours.ropes):
        layer = ours.ropes.index(rope)
        kinds = ours.hf_config.get("layer_types")
        # One set of longrope's factors at a time: all positions within the original length, or one beyond.
        for num_positions in (4096, min(ours.max_len_limit, 40_000)):
            positions = [0, 1, 7, 1000, num_positions - 1]
            table = rope_table(rope, num_positions=num_positions, device=torch.device("cpu"))
            expected = rotary(name, positions, kinds[layer] if kinds else "full_attention")
            torch.testing.assert_close(table[positions], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("named", [{}, {"torch_dtype": "float16"}, {"dtype": "float16"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, None], ids=str)
def test_a_config_without_a_dtype_has_that_of_its_weights(
    dtype: torch.dtype | None, named: dict[str, str], tmp_path: Path
) -> None:
    config = REAL_CONFIGS["meta-llama/Llama-3.2-1B"]
    raw = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    (tmp_path / "config.json").write_text(json.dumps(raw | named))
    if dtype is not None:
        tensors = {
            "norm": torch.ones(4),
            "packed": torch.ones(100, dtype=torch.int32),
            "head": torch.ones(9, dtype=dtype),
        }
        save_file(tensors, tmp_path / "model.safetensors")
    expected = "float16" if named else str(dtype or torch.float32).removeprefix("torch.")
    assert read_model_config(tmp_path).dtype == expected
