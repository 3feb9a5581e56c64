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
        model_config=SimpleNamespace(description=description, quantization=None),
        cache=cache,
        max_model_len=64,
        device="cpu",
        dtype="float32",
        op_by_op=None,
    )
    engine: Any = SimpleNamespace(loaded=loaded, default_sampling_params={})
    assert f"  model     {line}" in banner(Settings(model=model), engine, port=1)
    assert "  page      http://127.0.0.1:1/\n" in banner(Settings(model=model), engine, port=1)
    assert "page" not in banner(Settings(model=model, page=False), engine, port=1)
    assert "sampling" not in banner(Settings(model=model), engine, port=1)
    engine.default_sampling_params = {"temperature": 0.7, "top_k": 20}
    row = "  sampling  temperature 0.7, top_k 20 where a request has none\n"
    assert row in banner(Settings(model=model), engine, port=1)


def test_the_panel_says_how_weights_are_quantized() -> None:
    loaded: Any = SimpleNamespace(device="cpu", dtype="torch.bfloat16", max_model_len=64, op_by_op=None)
    loaded.cache = SimpleNamespace(num_blocks=8)
    loaded.model_config = SimpleNamespace(quantization=SimpleNamespace(name="AWQ, 4 bits"), description="")
    engine: Any = SimpleNamespace(loaded=loaded, default_sampling_params={})
    assert "cpu, bfloat16, weights AWQ, 4 bits\n" in banner(Settings(), engine, port=80)
    loaded.model_config.quantization = None
    assert "cpu, bfloat16\n" in banner(Settings(), engine, port=80)
    loaded.op_by_op = "softmax is no native op"
    assert "cpu, bfloat16, op by op (softmax is no native op)\n" in banner(Settings(), engine, port=80)
