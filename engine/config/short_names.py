"""Short names of popular models: the file on the Hugging Face hub that each name stands for. A table and no network."""

import re
from typing import NamedTuple

from ..errors import ConfigError


class HubModel(NamedTuple):
    """GGUF file on the hub."""

    hub_id: str  # OWNER/NAME:FILE
    architecture: str  # the file's general.architecture
    num_bytes: int  # size of the file, rounded to millions
    description: str


_MB = 10**6
# All are instruct models whose files anyone may fetch. Sizes of Ministral 3, Qwen3.5 and Qwen3.6 include their encoders
# of images, which are not fetched.
SHORT_NAMES = {
    "gemma3:1b": HubModel(
        "ggml-org/gemma-3-1b-it-GGUF:gemma-3-1b-it-Q4_K_M.gguf", "gemma3", 806 * _MB, "Gemma 3, 1B, 4 bits"
    ),
    "gemma3:4b": HubModel(
        "ggml-org/gemma-3-4b-it-GGUF:gemma-3-4b-it-Q4_K_M.gguf", "gemma3", 2490 * _MB, "Gemma 3, 4B, 4 bits"
    ),
    "glm-4.7-flash": HubModel(
        "unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-UD-Q4_K_XL.gguf", "deepseek2", 17500 * _MB, "GLM-4.7-Flash, 4 bits"
    ),
    "gpt-oss:20b": HubModel(
        "ggml-org/gpt-oss-20b-GGUF:gpt-oss-20b-mxfp4.gguf", "gpt-oss", 12110 * _MB, "gpt-oss, 20B, 4 bits"
    ),
    "granite3.3:2b": HubModel(
        "ibm-granite/granite-3.3-2b-instruct-GGUF:granite-3.3-2b-instruct-Q4_K_M.gguf",
        "granite",
        1545 * _MB,
        "Granite 3.3, 2B, 4 bits",
    ),
    "lfm2.5:1.2b": HubModel(
        "LiquidAI/LFM2.5-1.2B-Instruct-GGUF:LFM2.5-1.2B-Instruct-Q4_K_M.gguf", "lfm2", 731 * _MB, "LFM2.5, 1.2B, 4 bits"
    ),
    "lfm2.5:8b": HubModel(
        "LiquidAI/LFM2.5-8B-A1B-GGUF:LFM2.5-8B-A1B-Q4_K_M.gguf",
        "lfm2moe",
        5160 * _MB,
        "LFM2.5, 8B with 1B active, 4 bits",
    ),
    "llama3.2:1b": HubModel(
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        "llama",
        808 * _MB,
        "Llama 3.2, 1B, 4 bits",
    ),
    "llama3.2:3b": HubModel(
        "bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        "llama",
        2019 * _MB,
        "Llama 3.2, 3B, 4 bits",
    ),
    "ministral3:3b": HubModel(
        "mistralai/Ministral-3-3B-Instruct-2512-GGUF:Ministral-3-3B-Instruct-2512-Q4_K_M.gguf",
        "mistral3",
        2990 * _MB,
        "Ministral 3, 3B, 4 bits",
    ),
    "olmo2:1b": HubModel(
        "allenai/OLMo-2-0425-1B-Instruct-GGUF:OLMo-2-0425-1B-Instruct-Q4_K_M.gguf",
        "olmo2",
        936 * _MB,
        "OLMo 2, 1B, 4 bits",
    ),
    "phi4-mini": HubModel(
        "unsloth/Phi-4-mini-instruct-GGUF:Phi-4-mini-instruct-Q4_K_M.gguf", "phi3", 2492 * _MB, "Phi-4 mini, 4 bits"
    ),
    "qwen2.5:0.5b": HubModel(
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf", "qwen2", 491 * _MB, "Qwen2.5, 0.5B, 4 bits"
    ),
    "qwen2.5-coder:1.5b": HubModel(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "qwen2",
        1117 * _MB,
        "Qwen2.5 Coder, 1.5B, 4 bits",
    ),
    "qwen3:0.6b": HubModel("Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", "qwen3", 639 * _MB, "Qwen3, 0.6B, 8 bits"),
    "qwen3:1.7b": HubModel("Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf", "qwen3", 1834 * _MB, "Qwen3, 1.7B, 8 bits"),
    "qwen3:4b": HubModel("Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf", "qwen3", 2497 * _MB, "Qwen3, 4B, 4 bits"),
    "qwen3:8b": HubModel("Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf", "qwen3", 5028 * _MB, "Qwen3, 8B, 4 bits"),
    "qwen3.5:0.8b": HubModel(
        "unsloth/Qwen3.5-0.8B-GGUF:Qwen3.5-0.8B-UD-Q4_K_XL.gguf", "qwen35", 764 * _MB, "Qwen3.5, 0.8B, 4 bits"
    ),
    "qwen3.5:2b": HubModel(
        "unsloth/Qwen3.5-2B-GGUF:Qwen3.5-2B-UD-Q4_K_XL.gguf", "qwen35", 2010 * _MB, "Qwen3.5, 2B, 4 bits"
    ),
    "qwen3.5:4b": HubModel(
        "unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-UD-Q4_K_XL.gguf", "qwen35", 3580 * _MB, "Qwen3.5, 4B, 4 bits"
    ),
    "qwen3.5:9b": HubModel(
        "unsloth/Qwen3.5-9B-GGUF:Qwen3.5-9B-UD-Q4_K_XL.gguf", "qwen35", 6880 * _MB, "Qwen3.5, 9B, 4 bits"
    ),
    "qwen3.6:27b": HubModel(
        "unsloth/Qwen3.6-27B-GGUF:Qwen3.6-27B-UD-Q4_K_XL.gguf", "qwen35", 18500 * _MB, "Qwen3.6, 27B, 4 bits"
    ),
    "qwen3.6:35b": HubModel(
        "unsloth/Qwen3.6-35B-A3B-GGUF:Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf",
        "qwen35moe",
        23300 * _MB,
        "Qwen3.6, 35B with 3B active, 4 bits",
    ),
    "smollm2:1.7b": HubModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:smollm2-1.7b-instruct-q4_k_m.gguf",
        "llama",
        1056 * _MB,
        "SmolLM2, 1.7B, 4 bits",
    ),
    "smollm3:3b": HubModel(
        "unsloth/SmolLM3-3B-128K-GGUF:SmolLM3-3B-128K-UD-Q4_K_XL.gguf", "smollm3", 1940 * _MB, "SmolLM3, 3B, 4 bits"
    ),
}


_ADDRESS = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)(?P<path>[^?#]+)(?:[?#].*)?", re.IGNORECASE
)
_OTHER_HUB = re.compile(
    r"(?:ollama (?:run|pull) |ollama://|(?:https?://)?(?:www\.)?(?:registry\.)?ollama\.(?:com|ai)/(?:library/)?)(?P<name>\S+)"
)


def hub_name(model: str) -> str:
    """Return `owner/name` or `owner/name:FILE` for a short name or an address on the hub; any other name stays.

    Raises ConfigError for addresses elsewhere, with what to type.
    """
    if (known := SHORT_NAMES.get(model.lower())) is not None:
        return known.hub_id
    if match := _ADDRESS.fullmatch(model):
        owner, _, rest = match["path"].strip("/").partition("/")
        name, _, rest = rest.partition("/")
        kind, _, after = rest.partition("/")
        if kind in ("resolve", "blob", "raw", "tree"):
            revision, _, rest = after.partition("/")
            if revision not in ("", "main"):
                raise ConfigError(f"{model}: give {owner}/{name} and --revision {revision}")
        return f"{owner}/{name}:{rest}" if rest else f"{owner}/{name}"
    if match := _OTHER_HUB.fullmatch(model):
        name = match["name"]
        same = SHORT_NAMES.get(name.lower()) or (hub_name(name) != name and name)
        instead = name if same else "OWNER/NAME:Q4_K_M, the model's name on huggingface.co"
        raise ConfigError(f"models of Ollama's registry are not read; type: splitfuse serve {instead}")
    if "://" in model:
        raise ConfigError(f"{model}: models are fetched from huggingface.co alone; download the file and give its path")
    return model
