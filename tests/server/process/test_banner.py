"""The start banner: a line to try, and what the model is."""

from types import SimpleNamespace
from typing import Any

import pytest

from splitfuse.server.process.banner import banner, curl
from splitfuse.server.settings import Settings


def test_the_curl_line_brings_the_key():
    assert "$SPLITFUSE_API_KEY" in curl(Settings(api_key=("k",)), "http://x")
    assert "API_KEY" not in curl(Settings(), "http://x")


@pytest.mark.parametrize(
    ("model", "description", "line"),
    [
        ("demo", "", "splitfuse-demo-5m (the bundled demo, a toy; "),
        ("smollm2", "SmolLM2, 4-bit GGUF (Q4_1), 135 M parameters", "smollm2 (SmolLM2, 4-bit GGUF (Q4_1), 135 M "),
        ("owner/name", "", "owner/name\n"),
    ],
)
def test_the_banner_says_what_the_model_is(model: str, description: str, line: str) -> None:
    cache = SimpleNamespace(num_blocks=8)
    loaded = SimpleNamespace(
        model_config=SimpleNamespace(description=description),
        cache=cache,
        max_model_len=64,
        device="cpu",
        dtype="float32",
    )
    engine: Any = SimpleNamespace(loaded=loaded)
    assert f"  model     {line}" in banner(Settings(model=model), engine, port=1)
