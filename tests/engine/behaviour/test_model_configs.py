"""Configs found in the wild mean the same to us and to transformers, or are refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tables import table
from tiny_models import CONFIGS, byte_tokenizer, greedy, save_model, write_config
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import parse_model_config
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.language.text.tokenizer import Tokenizer

PROMPT = [20 + i * 7 % 200 for i in range(120)]
OURS_LIKE_THEIRS: list[tuple[str, dict[str, Any]]] = table(__file__, "ours like theirs")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "changes"), OURS_LIKE_THEIRS)
def test_config_variants_give_the_tokens_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save_model(name, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write_config(tmp_path, **changes)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    # transformers' Llama ignores a window, but its cache does not: from the second token on the first is forgotten.
    num_tokens = 1 if "llama" in name and "sliding_window" in changes else 12
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32").generate({"prompt_token_ids": PROMPT}, params)[0]
    assert ours.outputs[0].token_ids == greedy(theirs, PROMPT, num_tokens)


REFUSED: list[tuple[dict[str, Any], str]] = table(__file__, "refused")


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path), dtype="float32")


REFUSED_BY_FAMILY: list[tuple[str, dict[str, Any], str]] = table(__file__, "refused by family")


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED_BY_FAMILY)
def test_what_a_family_cannot_do_is_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    if "partial_rotary_factor" in changes:
        saved["rope_parameters"].pop("partial_rotary_factor")
        changes = {**changes, "rope_parameters": saved["rope_parameters"]}
    write_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path), dtype="float32")


@pytest.mark.parametrize(
    ("architecture", "model_type", "nearest"),
    [
        ("OlmoForCausalLM", "olmo", r"OLMo"),
        ("PhiForCausalLM", "phi", "Phi-3"),
        ("LlamaForTokenClassification", "llama", r"\(LlamaForCausalLM\)"),
        ("Qwen4NextForCausalLM", "", "Qwen3-Next"),
        ("GPTJForCausalLM", "gptj", "GPT"),
        ("MistralForCausalLLM", None, r"\(MistralForCausalLM\)"),
    ],
)
def test_a_refused_architecture_is_told_the_nearest(
    architecture: str, model_type: str | None, nearest: str, tmp_path: Path
) -> None:
    save_model("llama-mha", tmp_path)
    write_config(tmp_path, architectures=[architecture], model_type=model_type)
    with pytest.raises(
        ConfigError, match=rf"{architecture}.*nearest by name: [^;]*{nearest}[^;]*; `splitfuse models --supported`"
    ):
        LLM(str(tmp_path), model_impl="native")


def test_an_architecture_like_none_is_told_where_all_are_listed() -> None:
    with pytest.raises(ConfigError, match="'Zzz' is not known; `splitfuse models --supported` lists"):
        parse_model_config({"architectures": ["Zzz"], "model_type": "zzz"}, generation={})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}, "an adapter .* for a/b, not a model"),
        ({"adapter_config.json": b"{}", "tokenizer.json": b"{}"}, "an adapter .* for its base model"),
        ({"tokenizer.json": b"{}", "special_tokens_map.json": b"{}"}, r"a tokenizer \(tokenizer\.json\) and no model"),
        ({"notes.txt": b""}, r"config\.json is missing"),
    ],
)
def test_a_folder_without_a_model_is_called_what_it_is(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path))


@pytest.mark.parametrize(("name", "words"), [("adapter_config.json", "an adapter"), ("m.gguf", "GGUF")])
def test_beside_a_config_as_well(name: str, words: str, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path))


def test_weights_that_nothing_would_read_are_refused(tmp_path: Path) -> None:
    save_model("qwen2", tmp_path)
    write_config(tmp_path, architectures=["LlamaForCausalLM"], model_type="llama")
    with pytest.raises(ConfigError, match=r"k_proj\.bias.* one of 6"):
        LLM(str(tmp_path), dtype="float32")


def test_gpt2_as_it_was_published(tmp_path: Path) -> None:
    """Load names without "transformer.", causal masks among the weights, no head."""
    model = save_model("gpt2", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    assert "wte.weight" in tensors
    assert "lm_head.weight" not in tensors
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 9, 9), "h.0.attn.masked_bias": torch.ones(1)}, path)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32").generate({"prompt_token_ids": PROMPT}, params)[0]
    assert ours.outputs[0].token_ids == greedy(model, PROMPT, 12)


@pytest.mark.parametrize("head", ["embed_out", "lm_head"])
def test_gpt_neox_as_it_was_published_and_as_it_is_named_now(head: str, tmp_path: Path) -> None:
    """Load early files, which have causal masks and angles among the weights, and current ones."""
    model = save_model("gpt-neox", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{head}.weight"] = tensors.pop("embed_out.weight")
    layer = "gpt_neox.layers.0.attention"
    old = {f"{layer}.{name}": torch.ones(9) for name in ("bias", "masked_bias", "rotary_emb.inv_freq")}
    save_file({**tensors, **old}, path)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32").generate({"prompt_token_ids": PROMPT}, params)[0]
    assert ours.outputs[0].token_ids == greedy(model, PROMPT, 12)


def test_yarn_serves_what_it_stretches_to(tmp_path: Path) -> None:
    save_model("llama-yarn", tmp_path)
    yarn = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 512}
    write_config(tmp_path, rope_parameters=yarn)
    with pytest.raises(ConfigError, match="2048 positions"):
        LLM(str(tmp_path), dtype="float32", max_model_len=2049)
    assert resolve(EngineConfig(model=str(tmp_path), num_kv_blocks=40), tmp_path).config.max_model_len == 512
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32", max_model_len=700).generate({"prompt_token_ids": PROMPT * 5}, params)[0]
    assert ours.outputs[0].token_ids == greedy(theirs, PROMPT * 5, 12)


@pytest.mark.parametrize(("max_model_len", "name"), [(128, "short_factor"), (129, "long_factor")])
def test_longrope_says_which_factors_hold(
    max_model_len: int, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model("phi3-longrope", tmp_path)
    write_config(tmp_path, original_max_position_embeddings=128)
    with caplog.at_level("INFO", logger="splitfuse.engine"):
        LLM(str(tmp_path), dtype="float32", max_model_len=max_model_len, num_kv_blocks=40)
    assert f"longrope: {name}" in caplog.text


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="int8"):
        LLM(str(tmp_path), dtype="float32")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"{"),
        ("chat_template.jinja", b"\xff\xfe"),
        ("chat_template.jinja", b"{% for x %}"),
    ],
)
def test_broken_tokenizer_files_stop_the_start(file: str, content: bytes, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=r"tokenizer|chat"):
        Tokenizer(tmp_path)


def test_an_end_token_beyond_the_vocabulary_is_no_end_token(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2000]}))
    params = SamplingParams(min_tokens=2, max_tokens=4, temperature=0)
    assert LLM(str(tmp_path), dtype="float32").generate([[20, 21]], params)[0].outputs[0].finish_reason in (
        "length",
        "stop",
    )


@pytest.mark.parametrize(
    ("config", "generation", "own", "ends"),
    [
        (0, {"eos_token_id": 0}, "<|end|>", {0, 5}),
        (0, None, "<|end|>", {0, 5}),
        (None, {}, "<|end|>", {5}),
        (5, {"eos_token_id": None}, None, {5}),
        ([0, 5], {"eos_token_id": [0]}, None, {0, 5}),
    ],
)
def test_end_tokens_of_all_files_count(
    config: object, generation: dict[str, Any] | None, own: str | None, ends: set[int], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(Path(__file__).parents[3] / "engine/demo_model", folder)
    for name, new in (("config.json", {"eos_token_id": config}), ("tokenizer_config.json", {"eos_token": own})):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | new))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    llm = LLM(str(folder))
    for token_id in (0, 5):
        params = SamplingParams(max_tokens=4, logit_bias={token_id: 100})
        output = llm.generate([[100, 200]], params)[0].outputs[0]
        assert (output.finish_reason == "stop") == (token_id in ends), token_id


def test_a_stored_head_beats_a_tied_one_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Compare with transformers, which uses the stored head where its values differ from the embedding's."""
    save_model("llama-gqa-tied", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    for stored, is_said in ((embedding.clone(), False), (embedding.roll(7, 0).contiguous(), True)):
        save_file(tensors | {"lm_head.weight": stored}, path, {"format": "pt"})
        caplog.clear()
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        ids = LLM(str(tmp_path), dtype="float32").generate([[20, 21, 22]], params)[0].outputs[0].token_ids
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        expected = theirs.generate(torch.tensor([[20, 21, 22]]), max_new_tokens=6, do_sample=False, eos_token_id=None)
        assert list(ids) == expected[0, 3:].tolist()
        assert ("tie_word_embeddings" in caplog.text) == is_said


_ENCODER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_WHOLE: dict[str, dict[str, Any]] = {
    "gemma4": {
        "vision_config": {**_ENCODER, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16},
        "image_token_id": 270,
        "video_token_id": 269,
        "audio_token_id": 268,
    },
    "llama4": {
        "vision_config": {
            **_ENCODER, "intermediate_size": 128, "image_size": 28, "patch_size": 14, "vision_output_dim": 32,
            "projector_input_dim": 32, "projector_output_dim": 32,
        },
        "image_token_index": 270,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", _WHOLE)
def test_encoders_beside_the_text_part_stay_unread(name: str, tmp_path: Path) -> None:
    text = {**CONFIGS[name].to_dict(), "pad_token_id": 0}
    torch.manual_seed(1)
    config = CONFIG_MAPPING[name](text_config=text, **_WHOLE[name])
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32").generate({"prompt_token_ids": PROMPT}, params)[0]
    assert ours.outputs[0].token_ids == greedy(model, PROMPT, 12)
