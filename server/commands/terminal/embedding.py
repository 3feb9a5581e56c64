"""`splitfuse embed`: embeds each line of a file, in this process."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....engine.errors import ConfigError
from ....engine.execution.build_announcement import announce_build
from ...server_settings import ServerSettings

_LINES_AT_ONCE = 2048


def embed(settings: ServerSettings, *, source: str, target: str, dimensions: int | None, truncate: bool) -> int:
    """Embed each line of `source`; "-" is standard input. Raises ConfigError, InvalidRequestError.

    `target`: a file of JSON lists, one per line, or for a name in .npy numpy's float32 matrix; "-": standard output.
    """
    lines = read_lines(source)
    config = settings.engine_config()
    announce_build(config.device, config.model)
    from ....engine.extras.pooling.params import PoolingParams
    from ....engine.serving.llm import LLM

    params = PoolingParams(dimensions=dimensions, truncate_prompt_tokens=-1 if truncate else None)
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    with LLM(**given) as llm:
        _write(target, _embedded(llm, lines, params))
    return 0


def read_lines(source: str) -> list[str]:
    """Return the lines of a text file. Raises ConfigError."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{source} cannot be read ({exc}); embed takes UTF-8 text, a line for each text") from exc
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ConfigError(f"{source}: line {number} is empty; every line is a text to embed")
    if not lines:
        raise ConfigError(f"{source} is empty; embed takes a line for each text")
    return lines


def _embedded(llm: Any, lines: list[str], params: Any) -> Iterator[list[float]]:
    for first in range(0, len(lines), _LINES_AT_ONCE):
        for output in llm.embed(lines[first : first + _LINES_AT_ONCE], params):
            yield output.outputs.embedding


def _write(target: str, vectors: Iterator[list[float]]) -> None:
    if target.endswith(".npy"):
        import numpy as np

        np.save(target, np.array(list(vectors), dtype=np.float32))
        return
    to_screen = contextlib.nullcontext(sys.stdout)
    with to_screen if target == "-" else Path(target).open("w", encoding="utf-8") as file:
        for vector in vectors:
            file.write(json.dumps(vector, separators=(",", ":")) + "\n")
