"""Bodies of the routes for adapters, with vLLM's names."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ....engine.errors import InvalidRequestError
from ...api.request_model import RequestModel, ServerPath

_Id = Annotated[int | None, Field(description="vLLM's, not read: names tell adapters apart.")]


class LoadRequest(RequestModel):
    """An adapter to load."""

    example: ClassVar = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    lora_name: Annotated[str, Field(min_length=1, max_length=256)]
    lora_path: Annotated[ServerPath, Field(description="peft's folder, or a GGUF file, on the server's machine.")]
    lora_int_id: _Id = None
    load_inplace: Annotated[bool, Field(description="Replace an adapter of this name.")] = False

    def folder(self, lora_dir: str | None) -> Path:
        """Return the folder or file, with its links followed. Raises InvalidRequestError."""
        base = None if lora_dir is None else Path(lora_dir).expanduser().resolve()
        try:
            path = Path(self.lora_path) if base is None else base / self.lora_path
            if not path.is_absolute():
                raise InvalidRequestError(
                    "lora_path must be absolute, or the server needs --lora-dir", param="lora_path"
                )
            path = path.resolve()
            exists = path.exists()
            files = [file.resolve() for file in path.iterdir()] if path.is_dir() else []
        except (OSError, ValueError, RuntimeError) as exc:
            raise InvalidRequestError(f"lora_path cannot be read ({type(exc).__name__})", param="lora_path") from exc
        if base is not None and not all(place.is_relative_to(base) for place in (path, *files)):
            raise InvalidRequestError(
                "lora_path, and each file that it links to, must lie within the server's --lora-dir", param="lora_path"
            )
        if not exists:
            raise InvalidRequestError(f"{path} is no folder or file of the server's machine", param="lora_path")
        return path


class UnloadRequest(RequestModel):
    """An adapter to unload."""

    example: ClassVar = {"lora_name": "sql"}
    lora_name: Annotated[str, Field(min_length=1, max_length=256)]
    lora_int_id: _Id = None
