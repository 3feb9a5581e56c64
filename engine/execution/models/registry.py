"""Registry of model families: class and table row of each architecture name. A family is imported when it is used.

`python -m splitfuse.engine.execution.models.registry` prints the table of server/docs/models.md.
--rope-scaling is put into a model's fields here, so that the model serves more positions than it was made for.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError
from ...extension import declared
from ...formats.json_file import positive_number, read_json
from .config import ModelConfig

if TYPE_CHECKING:
    from .decoder import Decoder

_ORIGINAL = "original_max_position_embeddings"
_KINDS = ("linear", "llama3", "yarn")
_WHY = {
    "dynamic": "dynamic turns keys by the length of their request, so none could be cached; use yarn or linear",
    "longrope": "longrope's factors come with a model's own files; use yarn or linear",
}
_KEPT = ("rope_theta", "partial_rotary_factor")  # fields of a model's own rope that scaling leaves


def scaled(fields: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return a family's normalized fields with this scaling in place of their own, and with the longer context.

    `factor` times the original length is the new one. Raises ConfigError.
    """
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in _KINDS:
        raise ConfigError(_WHY.get(str(kind), f"rope_type {kind!r} is not known; known: {', '.join(_KINDS)}"))
    own = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise ConfigError("this model has several rotary embeddings, which are not scaled together")
    if fields.get("partial_rotary_factor") == 0.0:
        raise ConfigError("this model learned its positions, so there are no more of them")
    names = (scaling, own, fields)
    original = next((n[_ORIGINAL] for n in names if n.get(_ORIGINAL)), fields["max_position_embeddings"])
    length = int(positive_number(scaling, "factor") * positive_number({_ORIGINAL: original}, _ORIGINAL))
    kept = {name: own[name] for name in _KEPT if name in own}
    parameters = {**kept, _ORIGINAL: original, **scaling, "rope_type": kind}
    return {**fields, "rope_scaling": parameters, "max_position_embeddings": length}


class Family(NamedTuple):
    """Module of a family's class, and the family's row of the table in server/docs/models.md."""

    module: str
    name: str
    example: str  # an id on the hub
    notes: str


# Keys are the values of `architectures` in config.json.
MODELS = {
    "ApertusForCausalLM": Family(".apertus", "Apertus", "swiss-ai/Apertus-8B-Instruct-2509", ""),
    "ArceeForCausalLM": Family(".ungated_decoder", "Arcee AFM", "arcee-ai/AFM-4.5B", ""),
    "Cohere2ForCausalLM": Family(
        ".cohere", "Command R7B, A", "CohereLabs/c4ai-command-r7b-12-2024", "windows in three layers of four"
    ),
    "CohereForCausalLM": Family(".cohere", "Command R", "CohereLabs/c4ai-command-r-v01", "and Aya"),
    "DeepseekV2ForCausalLM": Family(
        ".deepseek", "DeepSeek V2", "deepseek-ai/DeepSeek-V2-Lite-Chat", "latent attention; mixture of experts"
    ),
    "DeepseekV3ForCausalLM": Family(
        ".deepseek",
        "DeepSeek V3, R1, Kimi K2",
        "moonshotai/Moonlight-16B-A3B-Instruct",
        "latent attention; mixture of experts",
    ),
    "Dots1ForCausalLM": Family(".deepseek", "dots.llm1", "rednote-hilab/dots.llm1.inst", "mixture of experts"),
    "Ernie4_5ForCausalLM": Family(".ernie4_5", "ERNIE 4.5", "baidu/ERNIE-4.5-0.3B-PT", ""),
    "Ernie4_5_MoeForCausalLM": Family(".ernie4_5", "ERNIE 4.5 MoE", "baidu/ERNIE-4.5-21B-A3B-PT", "mixture of experts"),
    "Exaone4ForCausalLM": Family(".exaone4", "EXAONE 4", "LGAI-EXAONE/EXAONE-4.0-1.2B", "1.2B, 32B"),
    "Glm4ForCausalLM": Family(".glm", "GLM-4-0414", "zai-org/GLM-4-9B-0414", "and GLM-Z1"),
    "Glm4MoeForCausalLM": Family(".glm", "GLM-4.5 to 4.7", "zai-org/GLM-4.5-Air", "mixture of experts"),
    "Glm4MoeLiteForCausalLM": Family(
        ".glm", "GLM-4.7-Flash", "zai-org/GLM-4.7-Flash", "latent attention; mixture of experts"
    ),
    "GlmForCausalLM": Family(".glm", "GLM-4, GLM-Edge", "zai-org/glm-4-9b-chat-hf", ""),
    "KimiLinearForCausalLM": Family(
        ".kimi_linear",
        "Kimi Linear",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        "delta rules in three layers of four, latent attention; mixture of experts",
    ),
    "Ministral3ForCausalLM": Family(".mistral", "Ministral 3", "mistralai/Ministral-3-8B-Base-2512", "text part"),
    "NemotronForCausalLM": Family(".ungated_decoder", "Nemotron-4, Minitron", "nvidia/Minitron-4B-Base", ""),
    "Olmo3ForCausalLM": Family(".olmo", "OLMo 3", "allenai/Olmo-3-7B-Instruct", "windows in three layers of four"),
    "SeedOssForCausalLM": Family(".llama", "Seed-OSS", "ByteDance-Seed/Seed-OSS-36B-Instruct", ""),
    "FalconForCausalLM": Family(".falcon", "Falcon", "tiiuae/falcon-7b", "7B, 11B, 40B; no ALiBi"),
    "Gemma2ForCausalLM": Family(".gemma", "Gemma 2", "google/gemma-2-2b-it", "soft-caps, windows in turn"),
    "Gemma3ForCausalLM": Family(".gemma", "Gemma 3", "google/gemma-3-1b-it", "text models"),
    "Gemma3nForCausalLM": Family(
        ".gemma3n", "Gemma 3n, text alone", "google/gemma-3n-E2B-it", "shared caches, per-layer inputs, four streams"
    ),
    "Gemma3nForConditionalGeneration": Family(
        ".gemma3n", "Gemma 3n", "google/gemma-3n-E2B-it", "text part; shared caches, per-layer inputs, four streams"
    ),
    "Gemma4ForCausalLM": Family(
        ".gemma4", "Gemma 4, text alone", "google/gemma-4-E2B-it", "shared caches, per-layer inputs; dense or mixture"
    ),
    "Gemma4ForConditionalGeneration": Family(
        ".gemma4", "Gemma 4", "google/gemma-4-E2B-it", "text part; shared caches, per-layer inputs; dense or mixture"
    ),
    "GemmaForCausalLM": Family(".gemma", "Gemma 1", "google/gemma-2b-it", "and CodeGemma"),
    "GPT2LMHeadModel": Family(".gpt2", "GPT-2", "openai-community/gpt2", ""),
    "GPTNeoXForCausalLM": Family(".falcon", "GPT-NeoX", "EleutherAI/pythia-410m", "and Pythia"),
    "GptOssForCausalLM": Family(".gpt_oss", "gpt-oss", "openai/gpt-oss-20b", "mixture of experts, sinks, MXFP4"),
    "GraniteForCausalLM": Family(".granite", "Granite 3", "ibm-granite/granite-3.3-2b-instruct", ""),
    "GraniteMoeForCausalLM": Family(
        ".granite", "Granite 3 MoE", "ibm-granite/granite-3.1-3b-a800m-instruct", "mixture of experts"
    ),
    "HunYuanDenseV1ForCausalLM": Family(".hunyuan", "Hunyuan, dense", "tencent/Hunyuan-1.8B-Instruct", ""),
    "HunYuanMoEV1ForCausalLM": Family(".hunyuan", "Hunyuan MoE", "tencent/Hunyuan-A13B-Instruct", "mixture of experts"),
    "MiniMaxM2ForCausalLM": Family(".minimax_m2", "MiniMax M2", "MiniMaxAI/MiniMax-M2", "mixture of experts"),
    "OlmoeForCausalLM": Family(".olmo", "OLMoE", "allenai/OLMoE-1B-7B-0924-Instruct", "mixture of experts"),
    "Lfm2ForCausalLM": Family(".lfm2", "LFM2", "LiquidAI/LFM2-1.2B", "short convolutions beside attention"),
    "LlamaForCausalLM": Family(
        ".llama", "Llama 1 to 3", "meta-llama/Llama-3.1-8B", "and similar models: SmolLM2, Falcon 3"
    ),
    "Llama4ForCausalLM": Family(
        ".llama4", "Llama 4, text alone", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "mixture of experts, chunks"
    ),
    "Llama4ForConditionalGeneration": Family(
        ".llama4",
        "Llama 4",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "text part; mixture of experts, attention within chunks; `--block-size` divides the chunk",
    ),
    "MinistralForCausalLM": Family(
        ".mistral", "Ministral", "mistralai/Ministral-8B-Instruct-2410", "windows in some layers"
    ),
    "MistralForCausalLM": Family(".mistral", "Mistral", "mistralai/Mistral-7B-v0.3", "with or without window"),
    "MixtralForCausalLM": Family(".mistral", "Mixtral", "mistralai/Mixtral-8x7B-v0.1", "mixture of experts"),
    "Olmo2ForCausalLM": Family(".olmo", "OLMo 2", "allenai/OLMo-2-0425-1B-Instruct", ""),
    "OPTForCausalLM": Family(".opt", "OPT", "facebook/opt-125m", "pre- and post-norm; convert `.bin` files first"),
    "Phi3ForCausalLM": Family(
        ".phi3",
        "Phi-3, Phi-4",
        "microsoft/Phi-4-mini-instruct",
        "longrope: long factors if `--max-model-len` is over the original length",
    ),
    "PhimoeForCausalLM": Family(
        ".phimoe", "Phi-3.5-MoE", "microsoft/Phi-3.5-MoE-instruct", "mixture of experts, SparseMixer's routing"
    ),
    "Qwen2ForCausalLM": Family(".qwen", "Qwen2, Qwen2.5", "Qwen/Qwen2.5-7B-Instruct", ""),
    "Qwen2MoeForCausalLM": Family(
        ".qwen", "Qwen2-MoE", "Qwen/Qwen1.5-MoE-A2.7B-Chat", "mixture of experts and a shared one"
    ),
    "Qwen3ForCausalLM": Family(".qwen", "Qwen3", "Qwen/Qwen3-0.6B", ""),
    "Qwen3MoeForCausalLM": Family(".qwen", "Qwen3-MoE", "Qwen/Qwen3-30B-A3B", "mixture of experts"),
    "BambaForCausalLM": Family(".mamba2", "Bamba", "ibm-ai-platform/Bamba-9B-v2", "state spaces in most layers"),
    "FalconH1ForCausalLM": Family(
        ".falcon_h1", "Falcon-H1", "tiiuae/Falcon-H1-1.5B-Instruct", "attention beside a state space"
    ),
    "GraniteMoeHybridForCausalLM": Family(
        ".granite_moe_hybrid",
        "Granite 4",
        "ibm-granite/granite-4.0-h-tiny",
        "state spaces in most layers; dense or mixture of experts",
    ),
    "Lfm2MoeForCausalLM": Family(
        ".lfm2", "LFM2-MoE", "LiquidAI/LFM2-8B-A1B", "short convolutions in most layers; mixture of experts"
    ),
    "Mamba2ForCausalLM": Family(".mamba2", "Mamba-2", "mistralai/Mamba-Codestral-7B-v0.1", "state spaces alone"),
    "NemotronHForCausalLM": Family(
        ".nemotron_h",
        "Nemotron-H, Nemotron 3",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "state spaces in most layers; dense or mixture of experts",
    ),
    "Qwen3NextForCausalLM": Family(
        ".qwen3_5",
        "Qwen3-Next",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "delta rules in three layers of four; mixture of experts and a shared one",
    ),
    "Qwen3_5ForCausalLM": Family(
        ".qwen3_5", "Qwen3.5, text alone", "Qwen/Qwen3.5-0.8B", "delta rules in three layers of four"
    ),
    "Qwen3_5ForConditionalGeneration": Family(
        ".qwen3_5", "Qwen3.5", "Qwen/Qwen3.5-0.8B", "text part; delta rules in three layers of four"
    ),
    "Qwen3_5MoeForCausalLM": Family(
        ".qwen3_5", "Qwen3.5-MoE, text alone", "Qwen/Qwen3.5-35B-A3B", "mixture of experts and a shared one"
    ),
    "Qwen3_5MoeForConditionalGeneration": Family(
        ".qwen3_5", "Qwen3.5-MoE", "Qwen/Qwen3.5-35B-A3B", "text part; mixture of experts and a shared one"
    ),
    "SmolLM3ForCausalLM": Family(".llama", "SmolLM3", "HuggingFaceTB/SmolLM3-3B", "some layers without positions"),
    "StableLmForCausalLM": Family(".stablelm", "StableLM", "stabilityai/stablelm-2-1_6b", "1.6B, 3B, 12B"),
    "Starcoder2ForCausalLM": Family(".layer_norm_decoder", "StarCoder 2", "bigcode/starcoder2-3b", ""),
}

# Names in published files that transformers spells otherwise.
_OTHER_NAMES = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}


def model_class(architecture: str, *, model_type: str = "", impl: str = "native") -> "type[Decoder]":
    """Import the class for config.json's architecture. Raises ConfigError that names the nearest known one."""
    if impl == "transformers":
        return import_module(".through_transformers", __package__).model_class()  # type: ignore[no-any-return]
    if architecture not in MODELS:
        if (extra := _class_of_extension(architecture)) is not None:
            return extra
        nearest = _nearest(architecture, model_type)
        hint = f"; nearest by name: {MODELS[nearest].name} ({nearest})" if nearest else ""
        raise ConfigError(
            f"architecture {architecture!r} is not known{hint}; "
            f"`splitfuse models --supported` lists the {len(MODELS)} that are"
        )
    module = import_module(MODELS[architecture].module, __package__)
    found: type[Decoder] = getattr(module, architecture)
    return found


def _class_of_extension(architecture: str) -> "type[Decoder] | None":
    """Return the class that an extension has for an architecture, such as one that pools; None if none has one."""
    finders = (extension.load(extension.decoder) for extension in declared() if extension.decoder is not None)
    return next((found for find in finders if (found := find(architecture)) is not None), None)


def _nearest(architecture: str, model_type: str) -> str | None:
    """Return the known architecture whose name is nearest to one of these; None if none is near."""
    names = {_stem(known): known for known in MODELS}
    for name in (model_type.lower().replace("_", ""), _stem(architecture)):
        if close := get_close_matches(name, names, n=1):
            return names[close[0]]
    return None


def _stem(architecture: str) -> str:
    """Return the name without the suffix, which would make all alike."""
    return architecture.split("For")[0].removesuffix("LMHeadModel").lower().replace("_", "")


def read_model_config(
    folder: Path, *, rope_scaling: Mapping[str, Any] | None = None, impl: str = "auto"
) -> ModelConfig:
    """Read the shape of the model in this folder or GGUF file, for --model-impl `impl`. Raises ConfigError.

    A folder's is in config.json, the end tokens in generation_config.json. Some configs name no dtype: then the
    weights' dtype counts, as in transformers. `rope_scaling` replaces the model's own.
    """
    if folder.is_file():
        from ...formats.gguf.config_fields import read_config_fields  # here: most models are folders

        fields = read_config_fields(folder)
        return parse_model_config(fields, generation={}, source=str(folder), rope_scaling=rope_scaling, impl=impl)
    if not (folder / "config.json").exists():
        from ...formats.missing_model import other_format, tokenizer_only  # here: most folders have one

        if what := other_format(folder) or tokenizer_only(folder):
            raise ConfigError(what)
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    source = folder / "config.json"
    raw = read_json(source)
    if not raw.get("quantization_config") and (path := folder / "hf_quant_config.json").exists():
        declared = read_json(path).get("quantization")  # ModelOpt's older checkpoints have it here alone
        raw["quantization_config"] = {"quant_method": "modelopt", **(declared if isinstance(declared, dict) else {})}
    text = raw.get("text_config")
    if not any(part.get(name) for part in (raw, text or {}) for name in ("dtype", "torch_dtype")):
        from ...formats.tensor_entry import stored_dtype  # here: it imports torch

        raw["dtype"] = stored_dtype(folder)
    return parse_model_config(raw, generation=generation, source=str(source), rope_scaling=rope_scaling, impl=impl)


def parse_model_config(
    raw: dict[str, Any],
    *,
    generation: dict[str, Any],
    source: str = "config.json",
    rope_scaling: Mapping[str, Any] | None = None,
    impl: str = "native",
) -> ModelConfig:
    """Parse `raw`, the config.json of any known family. Raises ConfigError that names `source`."""
    try:
        architecture = str((raw.get("architectures") or ["(none named)"])[0])
        if architecture in _OTHER_NAMES:
            architecture = _OTHER_NAMES[architecture]
            raw = raw | {"architectures": [architecture]}
        if architecture not in MODELS and impl != "transformers" and _class_of_extension(architecture) is None:
            from .wrappers import text_part  # here: most models are text alone

            if (text := text_part(raw, MODELS)) is not None:
                raw, architecture = text, text["architectures"][0]
        if impl == "transformers" or (
            impl == "auto" and architecture not in MODELS and _class_of_extension(architecture) is None
        ):
            through = import_module(".through_transformers", __package__)
            if (parsed := through.parse(raw, generation, source=source, impl=impl)) is not None:
                if rope_scaling is not None:
                    raise ConfigError(f"--rope-scaling is not built for {architecture}; leave it out")
                return parsed  # type: ignore[no-any-return]
        family = model_class(architecture, model_type=str(raw.get("model_type") or ""))
        fields = family.normalize_config(family.with_defaults(raw))
        if rope_scaling is not None:
            source = f"{source} with --rope-scaling"
            fields = scaled(fields, rope_scaling)
        config = ModelConfig.from_fields(fields, generation)
        return replace(config, layer_states=family.layer_states(config))
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as exc:
        raise ConfigError(f"{source}: a field is missing or of the wrong kind ({type(exc).__name__}: {exc})") from exc


def families_table() -> str:
    """Return the table of families for server/docs/models.md."""
    rows = sorted(MODELS.items(), key=lambda item: item[1].name.lower())
    lines = [f"| {row.name} | `{architecture}` | `{row.example}` | {row.notes} |" for architecture, row in rows]
    return "\n".join(["| family | `architectures` | for example | |", "|---|---|---|---|", *lines])


if __name__ == "__main__":
    print(families_table())
