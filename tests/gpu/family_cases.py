"""Cases of families.py: all families of tests/support, and all formats of weights on disk, the commonest first."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import tiny_models
from quantized_checkpoints import CASES, OTHERS, fp8, save_quantized
from tiny_encoders import DECODERS, ENCODERS, save_pooled
from tiny_models import CONFIGS, HYBRIDS, save_model
from transformers import LlamaConfig, Qwen3MoeConfig

GGUF, COMPRESSED = ("gguf",), ("compressed_tensors",)  # packages that make the files


@dataclass(frozen=True)
class Case:
    """Model in one form, and the settings that it is served with."""

    write: Callable[[Path], object]  # into a folder, of which the model is the file or folder `path`
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    on_gpu: dict[str, Any] = field(default_factory=dict)  # settings that a CPU does not have
    needs: tuple[str, ...] = ()
    pools: str = ""  # embed or classify
    has_graphs: bool = True  # False: the forward pass waits for the GPU, so a capture fails and steps run without one
    is_exact: bool = True  # False if one device rounds what the other does not


# Rows of whole blocks for formats that have them only from 128 or 256 inputs on.
_WIDE: dict[str, Any] = {
    "vocab_size": tiny_models.VOCAB_SIZE, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": tiny_models.MAX_LEN, "initializer_range": 0.1,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
CONFIGS |= {
    "llama-wide": LlamaConfig(**_WIDE, intermediate_size=512),
    "qwen3-moe-wide": Qwen3MoeConfig(
        **_WIDE, intermediate_size=512, moe_intermediate_size=256, num_experts=8, num_experts_per_tok=2
    ),
}


def _plain(model: str, **options: Any) -> Case:
    return Case(lambda folder: save_model(model, folder), options=options)


def _checkpoint(model: str, name: str) -> Case:
    case = CASES[name]
    needs = COMPRESSED if case.config["quant_method"] == "compressed-tensors" else ()
    # Both devices round inputs to int8 or e4m3 there, but a value near the middle of two either way.
    is_exact = not name.startswith(("w8a8", "int8-", "fp8-static", "fp8-dynamic"))
    write = lambda folder: save_quantized(model, case, folder / "quantized")  # noqa: E731
    return Case(write, "quantized", needs=needs, is_exact=is_exact)


def _blocks(model: str, size: int) -> Case:
    return Case(lambda folder: save_quantized(model, fp8((size, size)), folder / "quantized"), "quantized")


def _gguf(model: str, kind: str, **options: Any) -> Case:
    def write(folder: Path) -> None:
        import gguf
        from gguf_files import write_gguf

        write_gguf(folder / "model.gguf", model, kind=gguf.GGMLQuantizationType[kind])

    return Case(write, "model.gguf", options=options, needs=GGUF)


def _mixture(kind: str, dense_kind: str) -> Case:
    """Mixture of random blocks of types that the package reads but does not write."""

    def write(folder: Path) -> None:
        from gguf import GGMLQuantizationType as Type
        from mixture_files import Mixture, write_mixture

        mixture = Mixture(
            num_layers=2, hidden=256, inner=256, num_heads=4, num_kv_heads=2, head_dim=64, value_dim=64,
            dense_inner=512, num_experts=8, top_k=2, context_len=512, kind=Type[kind], dense_kind=Type[dense_kind],
        )  # fmt: skip
        write_mixture(folder / "model.gguf", mixture)

    return Case(write, "model.gguf", needs=GGUF)


def _pooled(model: str, pools: str, **described: Any) -> Case:
    num_labels = 3 if pools == "classify" else 0
    return Case(lambda folder: save_pooled(model, folder, num_labels=num_labels, **described), pools=pools)


def _rounded(model: str, kind: str) -> Case:
    """Weights that are rounded at load.

    A GPU rounds the inputs of e4m3 weights, too; and of experts with 40 inputs, not a multiple of int4's groups, a CPU
    rounds the other matrices, a GPU none.
    """
    is_exact = kind == "int8" or (kind == "int4" and model not in ("deepseek-v3", "qwen3-moe"))
    return Case(_plain(model).write, options={"quantization": kind}, is_exact=is_exact)


def _small_cache(model: str) -> Case:
    return Case(_plain(model).write, on_gpu={"kv_cache_dtype": "fp8"}, is_exact=False)


def _mxfp4(folder: Path) -> None:
    import_module("mxfp4_files").save_mxfp4(folder)


# The first of each family and format that many people have; then the other ones.
_COMMON_FAMILIES = (
    *("llama-gqa-tied", "qwen3", "qwen2", "mistral-window", "gemma3", "qwen3-moe", "gpt-oss", "deepseek-v3"),
    *("phi3-window", "qwen3.5", "gemma2", "mixtral-window", "gemma3n", "gemma4", "llama4", "glm4-moe", "qwen3-next"),
    *("granite-hybrid", "mamba2", "nemotron-h", "falcon-h1", "lfm2", "kimi-linear", "deepseek-v2", "llama3-rope"),
)
_FORMATS: dict[str, Case] = {
    "GGUF Q4_K": _mixture("Q4_K", "Q4_K"), "FP8 blocks of 128": _blocks("llama-wide", 128),
    "awq": _checkpoint("llama-gqa-tied", "awq"), "gptq": _checkpoint("llama-gqa-tied", "gptq"),
    "gptq-act-order": _checkpoint("llama-gqa-tied", "gptq-act-order"),
    "FP8 experts in blocks of 128": _blocks("qwen3-moe-wide", 128), "GGUF Q8_0": _gguf("llama-gqa-tied", "Q8_0"),
    "GGUF Q4_0": _gguf("llama-gqa-tied", "Q4_0"), "MXFP4": Case(_mxfp4, needs=GGUF),
    "int8 at load": _rounded("llama-gqa-tied", "int8"), "int4 at load": _rounded("llama-gqa-tied", "int4"),
    "fp8 at load": _rounded("llama-gqa-tied", "fp8"), "fp8-dynamic": _checkpoint("llama-gqa-tied", "fp8-dynamic"),
    "fp8-per-tensor": _checkpoint("llama-gqa-tied", "fp8-per-tensor"), "w8a8": _checkpoint("llama-gqa-tied", "w8a8"),
    "w4a16": _checkpoint("llama-gqa-tied", "w4a16"), "GGUF Q6_K, Q5_K": _mixture("Q6_K", "Q5_K"),
    "GGUF Q5_K, Q6_K": _mixture("Q5_K", "Q6_K"), "GGUF MXFP4": _gguf("gpt-oss", "MXFP4"),
}  # fmt: skip
_OTHER_FORMATS: dict[str, Case] = {
    **{name: _checkpoint("llama-gqa-tied", name) for name in CASES},
    **{f"{model} in {name}": _checkpoint(model, name) for model, name in OTHERS},
    **{f"GGUF {kind}": _gguf("llama-gqa-tied", kind) for kind in ("Q4_1", "Q5_0", "Q5_1", "BF16", "F16", "F32")},
    **{f"GGUF {kind}, wide": _gguf("llama-wide", kind) for kind in ("Q4_0", "Q8_0")},
    **{f"{model} in GGUF Q8_0": _gguf(model, "Q8_0") for model in ("qwen3-moe", "glm4", "deepseek-v3", "gemma4-moe")},
    **{f"{model} in GGUF Q4_0": _gguf(model, "Q4_0") for model in ("qwen3-moe", "gpt-oss", "qwen3.5", "gemma3n")},
    **{f"{model} in GGUF F32": _gguf(model, "F32") for model in ("gpt2", "mamba2", "nemotron-h-moe", "lfm2-moe")},
    **{
        f"{model}, {kind} at load": _rounded(model, kind)
        for kind in ("int8", "int4", "fp8")
        for model in (
            "llama-wide", "qwen3-moe-wide", "qwen3-moe", "deepseek-v3", "gpt-oss", "qwen3.5", "mamba2", "gemma2",
            "lfm2",
        )
    },
    **{
        f"{model}, e4m3 cache": _small_cache(model)
        for model in ("llama-gqa-tied", "deepseek-v3", "gemma3n", "qwen3.5", "gpt-oss")
    },
    **{
        f"{model}, drafts": _plain(model, speculative_config={"method": "ngram", "prompt_lookup_min": 1})
        for model in ("llama-gqa-tied", "qwen3.5", "deepseek-v3", "mamba2")
    },
    **{
        f"{model}, --model-impl transformers": replace(_plain(model, model_impl="transformers"), has_graphs=has_graphs)
        for model, has_graphs in (("llama-gqa-tied", True), ("qwen3-moe", False))
    },
    # A GPU rounds inputs for weights with one scale an output alone.
    "GGUF Q4_0, inputs int8": replace(_gguf("llama-gqa-tied", "Q4_0", quantization_activations="int8"), is_exact=False),
}  # fmt: skip
_POOLED = {
    "embed qwen3": _pooled("qwen3", "embed", pooling="lasttoken"),
    "embed bert": _pooled("bert", "embed"),
    **{f"embed {name}": _pooled(name, "embed", pooling="cls") for name in (*ENCODERS, *DECODERS)},
    **{f"classify {name}": _pooled(name, "classify") for name in ("bert", "modernbert", "qwen3")},
}
_COMMON = {name: _plain(name) for name in _COMMON_FAMILIES}
_FAMILIES = {name: _plain(name) for name in (*HYBRIDS, *CONFIGS)}


def cases() -> dict[str, Case]:
    """Return the cases by their names; of two with one name the first counts."""
    found: dict[str, Case] = {}
    for part in (_COMMON, _FORMATS, dict(list(_POOLED.items())[:2]), _FAMILIES, _OTHER_FORMATS, _POOLED):
        found |= {name: case for name, case in part.items() if name not in found}
    return found
