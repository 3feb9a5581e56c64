"""The Prefer header of RFC 7240, as far as we honour it: `wait=N`. What is not understood is ignored, as it says."""

from collections.abc import Iterable


def preferred_wait_s(headers: Iterable[str]) -> float:
    """How many seconds the client would like to wait for the result; 0 if it does not say, or prefers to be answered
    at once (`respond-async` without a wait).
    """
    preferences = [part.strip().partition("=") for header in headers for part in header.lower().split(",")]
    waits = [value.strip().strip('"') for name, _, value in preferences if name.strip() == "wait"]
    return float(waits[0]) if waits and waits[0].isascii() and waits[0].isdigit() and len(waits[0]) < 10 else 0.0
