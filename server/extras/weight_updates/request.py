"""Body and parameters of the routes: paths of weights, modes and levels."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fastapi import Query
from pydantic import Field

from ....engine.errors import InvalidRequestError
from ...api.parameters import says
from ...api.request_model import RequestModel, ServerPath

_MODE = "what becomes of running requests: they go on (keep), finish first (wait), or end (abort)"
ModeName = Literal["keep", "wait", "abort"]
Mode = Annotated[ModeName, says("must be keep, wait or abort"), Query(description=f"{_MODE[0].upper()}{_MODE[1:]}.")]
Level = Annotated[
    int,
    Field(ge=1, le=2),
    says("must be 1 or 2"),
    Query(description="1 gives back the memory of the cache, 2 also the memory of the weights."),
]
Tags = Annotated[
    list[Literal["weights", "kv_cache"]] | None,
    says("must be weights or kv_cache"),
    Query(description="vLLM's: with `weights` alone the weights come back, and the engine goes on sleeping."),
]


class WeightsRequest(RequestModel):
    """Weights to change to."""

    example: ClassVar = {"path": "/checkpoints/step-12"}
    location: Annotated[
        ServerPath, Field(alias="path", description="Folder of safetensors, or GGUF file, on the server's machine.")
    ]
    mode: Annotated[ModeName, Field(description=f"{_MODE[0].upper()}{_MODE[1:]}.")] = "keep"

    def folder(self, weights_dir: str | None) -> Path:
        """Return the folder or file, with its links followed. Raises InvalidRequestError."""
        base = None if weights_dir is None else Path(weights_dir).expanduser().resolve()
        try:
            path = Path(self.location) if base is None else base / self.location
            if not path.is_absolute():
                raise InvalidRequestError("path must be absolute, or the server needs --weights-dir", param="path")
            path = path.resolve()
            if base is not None and not path.is_relative_to(base):
                raise InvalidRequestError("path must lie within the server's --weights-dir", param="path")
            exists = path.exists()
        except (OSError, ValueError, RuntimeError) as exc:
            raise InvalidRequestError(f"path cannot be read ({type(exc).__name__})", param="path") from exc
        if not exists:
            raise InvalidRequestError(f"{path} is no folder or file of the server's machine", param="path")
        return path
