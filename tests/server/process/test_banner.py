"""The start banner: what is served, and a line to try."""

from types import SimpleNamespace

from splitfuse.server.process.banner import banner, curl
from splitfuse.server.settings import Settings


def test_the_curl_line_brings_the_key():
    assert "$SPLITFUSE_API_KEY" in curl(Settings(api_key=("k",)), "http://x")
    assert "API_KEY" not in curl(Settings(), "http://x")


def test_the_panel_says_how_weights_are_quantized():
    loaded = SimpleNamespace(device="cpu", dtype="torch.bfloat16", max_model_len=64)
    loaded.cache = SimpleNamespace(num_blocks=8)
    loaded.model_config = SimpleNamespace(quantization=SimpleNamespace(name="AWQ, 4 bits"), description="")
    engine = SimpleNamespace(loaded=loaded)
    assert "cpu, bfloat16, weights AWQ, 4 bits\n" in banner(Settings(), engine, port=80)
    loaded.model_config.quantization = None
    assert "cpu, bfloat16\n" in banner(Settings(), engine, port=80)
