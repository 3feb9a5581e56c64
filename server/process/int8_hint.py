"""Hint of the start banner: the speed that activations rounded to int8 would bring on this processor."""

from functools import cache
from pathlib import Path
from typing import Any

from ..server_settings import ServerSettings

_CPUINFO = Path("/proc/cpuinfo")
# SmolLM2-135M on two cores (tests/bench/RESULTS.md). With AMX tiles 69 -> 95 tokens/s of one stream, while prompts go
# by vectors: 980 tokens/s beside 1,950. With VNNI alone `auto` has most of the gain.
_HINT = (
    "--quantization-activations int8 would give one stream about 1.4 times the tokens/s; long prompts would take "
    "longer (perplexity up to 0.5 % higher)"
)


def int8_hint(settings: ServerSettings, loaded: Any) -> str | None:
    """Return the hint if the weights are packed and the processor has tiles; None if int8 is on or refused."""
    config = loaded.model_config
    is_packed = config.quantization is not None or settings.quantization in ("int8", "int4")
    is_packed |= any(f", {bits}-bit GGUF" in config.description for bits in (4, 5, 6, 8))
    is_auto = str(loaded.device) == "cpu" and is_packed and settings.quantization_activations == "auto"
    return _HINT if is_auto and "amx_int8" in cpu_flags() else None


@cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features by Linux's names; none on other systems."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
