"""Media types that a client accepts."""


def wants_html(accept: str) -> bool:
    """True if a browser asks: it accepts HTML by name, which programs do not."""
    return "text/html" in accept.lower()
