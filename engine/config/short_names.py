"""Short names of popular models: the file on the Hugging Face hub that each name stands for. A table and no network."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError


class HubModel(NamedTuple):
    """GGUF file on the hub."""

    hub_id: str  # OWNER/NAME:FILE
    architecture: str  # the file's general.architecture
    num_bytes: int  # size of the file, rounded to millions
    description: str
    packages: str = ""  # of Python's index, which hold the file in parts: this name with a number from 1 on
    num_packages: int = 0
    sha256: str = ""  # of the file


# All but Gemma 3 270M are instruct models whose files anyone may fetch. Sizes of Gemma 4, Ministral 3, Qwen3.5 and
# Qwen3.6 include their encoders of images, which are not fetched.
_TABLE: Any = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SHORT_NAMES = {name: HubModel(**row) for name, row in _TABLE.items()}
_ADDRESS = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)(?P<path>[^?#]+)(?:[?#].*)?", re.IGNORECASE
)
_OTHER_HUB = re.compile(
    r"(?:ollama (?:run|pull) |ollama://|(?:https?://)?(?:www\.)?(?:registry\.)?ollama\.(?:com|ai)/(?:library/)?)(?P<name>\S+)"
)


def short_name(model: str) -> HubModel | None:
    """Return the model of a short name, in any case, also with a dash for its colon (gemma3-270m); else None."""
    name = model.lower()
    return SHORT_NAMES.get(name) or SHORT_NAMES.get(":".join(name.rsplit("-", 1)))


def hub_name(model: str) -> str:
    """Return `owner/name` or `owner/name:FILE` for a short name or an address on the hub; any other name stays.

    Raises ConfigError for addresses elsewhere, with what to type.
    """
    if (known := short_name(model)) is not None:
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
        same = short_name(name) or (hub_name(name) != name and name)
        instead = name if same else "OWNER/NAME:Q4_K_M, the model's name on huggingface.co"
        raise ConfigError(f"models of Ollama's registry are not read; type: splitfuse serve {instead}")
    if "://" in model:
        raise ConfigError(f"{model}: models are fetched from huggingface.co alone; download the file and give its path")
    return model
