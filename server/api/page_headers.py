"""Headers of pages for browsers, so that a page loads and runs nothing else, and nothing else embeds the page."""

import base64
import hashlib


def wants_html(accept: str) -> bool:
    """True if a browser asks: it accepts HTML by name, which programs do not."""
    return "text/html" in accept.lower()


def page_headers(*, script: str = "'self'", style: str = "'self'") -> dict[str, str]:
    """Build the headers. Only these scripts and styles, and no text can become markup.

    data: and blob: serve the pictures that a page draws and the files that users save.
    """
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


def source_of(text: str, tag: str) -> str:
    """Return the policy's name of the one element with this tag in a page: the digest of its text."""
    inner = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"
