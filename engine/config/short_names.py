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


# All are instruct models whose files anyone may fetch. Sizes of Ministral 3, Qwen3.5 and Qwen3.6 include their encoders
# of images, which are not fetched.
# Short name, hub id, architecture, millions of bytes, description.
_TABLE = """
gemma3:1b ggml-org/gemma-3-1b-it-GGUF:gemma-3-1b-it-Q4_K_M.gguf gemma3 806 Gemma 3, 1B, 4 bits
gemma3:4b ggml-org/gemma-3-4b-it-GGUF:gemma-3-4b-it-Q4_K_M.gguf gemma3 2490 Gemma 3, 4B, 4 bits
glm-4.7-flash unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-UD-Q4_K_XL.gguf deepseek2 17500 GLM-4.7-Flash, 4 bits
gpt-oss:20b ggml-org/gpt-oss-20b-GGUF:gpt-oss-20b-mxfp4.gguf gpt-oss 12110 gpt-oss, 20B, 4 bits
granite3.3:2b ibm-granite/granite-3.3-2b-instruct-GGUF:granite-3.3-2b-instruct-Q4_K_M.gguf granite 1545 Granite 3.3, 2B, 4 bits
lfm2.5:1.2b LiquidAI/LFM2.5-1.2B-Instruct-GGUF:LFM2.5-1.2B-Instruct-Q4_K_M.gguf lfm2 731 LFM2.5, 1.2B, 4 bits
lfm2.5:8b LiquidAI/LFM2.5-8B-A1B-GGUF:LFM2.5-8B-A1B-Q4_K_M.gguf lfm2moe 5160 LFM2.5, 8B with 1B active, 4 bits
llama3.2:1b bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q4_K_M.gguf llama 808 Llama 3.2, 1B, 4 bits
llama3.2:3b bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q4_K_M.gguf llama 2019 Llama 3.2, 3B, 4 bits
ministral3:3b mistralai/Ministral-3-3B-Instruct-2512-GGUF:Ministral-3-3B-Instruct-2512-Q4_K_M.gguf mistral3 2990 Ministral 3, 3B, 4 bits
olmo2:1b allenai/OLMo-2-0425-1B-Instruct-GGUF:OLMo-2-0425-1B-Instruct-Q4_K_M.gguf olmo2 936 OLMo 2, 1B, 4 bits
phi4-mini unsloth/Phi-4-mini-instruct-GGUF:Phi-4-mini-instruct-Q4_K_M.gguf phi3 2492 Phi-4 mini, 4 bits
qwen2.5:0.5b Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf qwen2 491 Qwen2.5, 0.5B, 4 bits
qwen2.5-coder:1.5b Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf qwen2 1117 Qwen2.5 Coder, 1.5B, 4 bits
qwen3:0.6b Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf qwen3 639 Qwen3, 0.6B, 8 bits
qwen3:1.7b Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf qwen3 1834 Qwen3, 1.7B, 8 bits
qwen3:4b Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf qwen3 2497 Qwen3, 4B, 4 bits
qwen3:8b Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf qwen3 5028 Qwen3, 8B, 4 bits
qwen3.5:0.8b unsloth/Qwen3.5-0.8B-GGUF:Qwen3.5-0.8B-UD-Q4_K_XL.gguf qwen35 764 Qwen3.5, 0.8B, 4 bits
qwen3.5:2b unsloth/Qwen3.5-2B-GGUF:Qwen3.5-2B-UD-Q4_K_XL.gguf qwen35 2010 Qwen3.5, 2B, 4 bits
qwen3.5:4b unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-UD-Q4_K_XL.gguf qwen35 3580 Qwen3.5, 4B, 4 bits
qwen3.5:9b unsloth/Qwen3.5-9B-GGUF:Qwen3.5-9B-UD-Q4_K_XL.gguf qwen35 6880 Qwen3.5, 9B, 4 bits
qwen3.6:27b unsloth/Qwen3.6-27B-GGUF:Qwen3.6-27B-UD-Q4_K_XL.gguf qwen35 18500 Qwen3.6, 27B, 4 bits
qwen3.6:35b unsloth/Qwen3.6-35B-A3B-GGUF:Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf qwen35moe 23300 Qwen3.6, 35B with 3B active, 4 bits
smollm2:1.7b HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:smollm2-1.7b-instruct-q4_k_m.gguf llama 1056 SmolLM2, 1.7B, 4 bits
smollm3:3b unsloth/SmolLM3-3B-128K-GGUF:SmolLM3-3B-128K-UD-Q4_K_XL.gguf smollm3 1940 SmolLM3, 3B, 4 bits
"""  # noqa: E501  a row is a line
_ROWS = (line.split(maxsplit=4) for line in _TABLE.strip().split("\n"))
SHORT_NAMES = {
    name: HubModel(hub_id, architecture, int(millions) * 10**6, description)
    for name, hub_id, architecture, millions, description in _ROWS
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
