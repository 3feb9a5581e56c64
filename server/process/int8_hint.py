"""Hint of the start banner: the speed that activations rounded to int8 would bring on this processor."""

from functools import cache
from pathlib import Path
from typing import Any

from ..server_settings import ServerSettings

_CPUINFO = Path("/proc/cpuinfo")
# SmolLM2-135M on two cores (tests/bench/RESULTS.md). With VNNI alone: 199 -> 319 tokens/s at 32 x 256 in Q4_0, 252 ->
# 312 in Q8_0. With AMX tiles 69 -> 95 tokens/s of one stream, while prompts go by vectors: 980 tokens/s beside 1,950.
_WITH_VNNI = "would give about 1.2 to 1.6 times the tokens/s"
_WITH_AMX = "would give one stream about 1.4 times the tokens/s; long prompts would take longer"


def int8_hint(settings: ServerSettings, loaded: Any) -> str | None:
    """Return the hint if the weights are packed and the processor multiplies bytes; None if int8 is on or no gain."""
    config = loaded.model_config
    is_packed = config.quantization is not None or settings.quantization in ("int8", "int4")
    is_packed |= any(f", {bits}-bit GGUF" in config.description for bits in (4, 5, 6, 8))
    if str(loaded.device) != "cpu" or not is_packed or settings.quantization_activations != "auto":
        return None
    flags = cpu_flags()
    gain = _WITH_AMX if "amx_int8" in flags else _WITH_VNNI if flags & {"avx512_vnni", "avx_vnni"} else None
    return gain and f"--quantization-activations int8 {gain} (perplexity up to 0.4 % higher)"


@cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features by Linux's names; none on other systems."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
