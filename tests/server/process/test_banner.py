"""The start banner's line to try."""

from splitfuse.server.process.banner import curl
from splitfuse.server.settings import Settings


def test_the_curl_line_brings_the_key():
    assert "$SPLITFUSE_API_KEY" in curl(Settings(api_key=("k",)), "http://x")
    assert "API_KEY" not in curl(Settings(), "http://x")
