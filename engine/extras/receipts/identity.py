"""Identity: fingerprints of all that decides a model's tokens, beside the request: weights, tokenizer, arithmetic.

Weights are hashed whole, when the first receipt needs them, in a thread; see file_hashes.py.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ...config import ResolvedConfig
from ...errors import InvalidRequestError, UnavailableError
from ...execution.models.fingerprint import fingerprint
from .file_hashes import FileHashes

if TYPE_CHECKING:
    from ...execution.runner.model_runner import LoadedModel
    from ...language.text.tokenizer import Tokenizer

# Raised with every change of the kernels or the sampler after which an equal request may get other tokens.
ARITHMETIC_VERSION = 2
_CONFIGS = ("config.json", "generation_config.json")  # shapes and end tokens
_WAY_OUT = {
    "weights": "verify with the weights of the answer",
    "tokenizer": "verify with the tokenizer files of the answer",
    "template": "start with the chat template of the answer (--chat-template)",
    "arithmetic": "verify on a server with this device, dtype and quantization",
    "arithmetic_version": "verify with the release of splitfuse that gave the answer",
}


class Served(Protocol):
    """Engine with its model."""

    tokenizer: "Tokenizer | None"
    config: ResolvedConfig
    loaded: "LoadedModel"

    weights_path: Path | None  # None if they came as tensors


@dataclass(frozen=True)
class Identity:
    """Fingerprints, each `sha256:…`. `tokenizer` and `template` are None for a model without them."""

    FIELDS: ClassVar = ("weights", "tokenizer", "template", "arithmetic")

    weights: str
    tokenizer: str | None
    template: str | None
    arithmetic: str
    arithmetic_version: int = ARITHMETIC_VERSION

    @classmethod
    def of(cls, engine: Served) -> "Identity":
        """Return the identity of an engine's model. Reads the whole weights the first time, so not for an event loop.

        Raises UnavailableError if the files have changed since they were loaded, or if there are none.
        """
        tokenizer, config = engine.tokenizer, engine.config
        folder = engine.weights_path
        if folder is None:
            raise UnavailableError("the weights came as tensors, which no receipt can name; update them from a folder")
        if fingerprint(folder, config, dtype=engine.loaded.dtype) != config.fingerprint:
            raise UnavailableError(f"{folder} has changed since its weights were loaded; load them again for receipts")
        weights = f"random:{config.seed}" if config.load_format == "dummy" else _weights(folder)
        return cls(
            weights=weights,
            tokenizer=None if tokenizer is None else _hash(tokenizer.to_json()),
            template=_hash(tokenizer.chat_template.source) if tokenizer and tokenizer.has_chat_template else None,
            arithmetic=_arithmetic(engine),
        )

    @classmethod
    def read(cls, receipt: Mapping[str, Any]) -> "Identity":
        """Read the fingerprints of a receipt. Raises InvalidRequestError."""
        values = {name: receipt[name] for name in cls.FIELDS}
        arithmetic = values["arithmetic"]
        if not isinstance(arithmetic, dict) or arithmetic.keys() != {"class", "version"}:
            raise _malformed("arithmetic")
        identity = cls(
            values["weights"], values["tokenizer"], values["template"], arithmetic["class"], arithmetic["version"]
        )
        for item in fields(cls):
            value = getattr(identity, item.name)
            is_missing = value is None and item.name in ("tokenizer", "template")
            if not is_missing and (type(value) is not (int if item.name == "arithmetic_version" else str)):
                raise _malformed(item.name)
            if isinstance(value, str) and not re.fullmatch(r"[ -~]{1,200}", value):
                raise _malformed(item.name)
        return identity

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a receipt."""
        return {
            "weights": self.weights,
            "tokenizer": self.tokenizer,
            "template": self.template,
            "arithmetic": {"class": self.arithmetic, "version": self.arithmetic_version},
        }

    def check(self, receipt: "Identity") -> None:
        """Raise InvalidRequestError that names the first field in which a receipt's identity differs."""
        for name, way_out in _WAY_OUT.items():
            here, there = getattr(self, name), getattr(receipt, name)
            if here != there:
                raise InvalidRequestError(
                    f"the receipt is of another model: {name.replace('_', ' ')} {there}, here {here}; {way_out}",
                    param=f"receipt.{name.replace('_', '.')}",
                    code=f"other_{name}",
                )


def _malformed(name: str) -> InvalidRequestError:
    param = f"receipt.{name.replace('_', '.')}"
    return InvalidRequestError(f"{param} is not in the form of a receipt", param=param, code="receipt_malformed")


def _hash(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _weights(folder: Path) -> str:
    """Return the fingerprint of a GGUF file, or of a folder's safetensors and its config files."""
    hashes = FileHashes()
    if folder.is_file():
        return "sha256:" + hashes.sha256(folder)
    names = [*sorted(path.name for path in folder.glob("*.safetensors")), *_CONFIGS]
    lines = [f"{hashes.sha256(path)}  {path.name}\n" for name in names if (path := folder / name).exists()]
    return _hash("".join(lines))


def _arithmetic(engine: Served) -> str:
    """Name the class of arithmetic: two engines of one class and version compute equal bits."""
    config, loaded = engine.config, engine.loaded
    device, dtype = loaded.device.type, str(loaded.dtype).removeprefix("torch.")
    parts = [device, dtype]
    if config.quantization is not None:
        parts.append(f"weights={config.quantization}")
    activations = config.quantization_activations
    if activations == "int8" or (activations, *parts[:2]) == ("none", "cpu", "bfloat16"):  # elsewhere auto is none
        parts.append(f"activations={activations}")
    if config.kv_cache_dtype != "auto":
        parts.append(f"cache={config.kv_cache_dtype}")
    if device == "cuda" and config.exact:
        parts.append("exact")
    if (slices := config.tensor_parallel_slices or config.tensor_parallel_size) > 1:
        parts.append(f"slices={slices}")
    # Plain float32 on a CPU has one order of sums on every processor; other sums depend on the instructions.
    if parts != ["cpu", "float32"] or loaded.model_config.quantization is not None:
        parts.append(f"processor={_processor(device)}")
    return " ".join(parts)


def _processor(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()
    return re.sub(r"[^!-~]+", "-", name)
