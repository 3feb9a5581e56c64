"""Media types that a client accepts."""

from starlette.datastructures import Headers


def wants_html(headers: Headers) -> bool:
    """True if a browser asks: it accepts HTML by name, which programs do not."""
    return "text/html" in headers.get("accept", "").lower()
