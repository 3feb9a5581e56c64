"""Prefer header of RFC 7240, of which only `wait=N` is honoured. Unknown preferences are ignored, as the RFC says."""

from collections.abc import Iterable


def preferred_wait_s(headers: Iterable[str]) -> float:
    """Return the seconds that the client wants to wait for the result.

    0 without a wish, or with `respond-async` without a wait.
    """
    preferences = [part.strip().partition("=") for header in headers for part in header.lower().split(",")]
    waits = [value.strip().strip('"') for name, _, value in preferences if name.strip() == "wait"]
    return float(waits[0]) if waits and waits[0].isascii() and waits[0].isdigit() and len(waits[0]) < 10 else 0.0
