"""Sizes in bytes as people write them: 24GB, 16 GiB, 1073741824."""

import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SIZE_KIND = "a size: bytes, or a number and KB, MB, GB, TB (thousands), KiB, MiB, GiB or TiB, such as 24GB or 16GiB"


def byte_size(text: str) -> int:
    """Return the number of bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)|(-?\d+)", text.strip().upper())
    if match is None:
        raise ValueError(text)
    return int(match[3]) if match[3] else int(float(match[1]) * _UNITS[match[2]])
