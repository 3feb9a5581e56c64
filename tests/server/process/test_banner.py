"""The start banner: a line to try, and what the model is."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.execution.models.state_slots import StateSpec
from splitfuse.server.process.banner import banner, curl
from splitfuse.server.settings import Settings

FACTS = ResolvedConfig.of(EngineConfig(), device="cpu")


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
        inexact=None,
        states=None,
    )
    engine: Any = SimpleNamespace(config=FACTS, loaded=loaded, default_sampling_params={}, default_sampling_source="")
    assert f"  model     {line}" in banner(Settings(model=model), engine, port=1)
    assert "  page      http://127.0.0.1:1/\n" in banner(Settings(model=model), engine, port=1)
    assert "page" not in banner(Settings(model=model, page=False), engine, port=1)
    engine.default_sampling_params = {"temperature": 0.7, "top_k": 20}
    row = "  sampling  temperature 0.7, top_k 20 where a request has none\n"
    assert row in banner(Settings(model=model), engine, port=1)
    engine.default_sampling_source = "Llama 3's published values"
    assert f"{row[:-1]} (Llama 3's published values)\n" in banner(Settings(model=model), engine, port=1)


def test_the_address_for_other_machines_and_what_a_name_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = SimpleNamespace(
        device="cpu", dtype="torch.bfloat16", max_model_len=64, op_by_op=None, inexact=None, states=None
    )
    loaded.cache = SimpleNamespace(num_blocks=8)
    loaded.model_config = SimpleNamespace(quantization=None, description="")
    engine: Any = SimpleNamespace(config=FACTS, loaded=loaded, default_sampling_params={}, default_sampling_source="")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda *_: ("192.168.1.5", 9))
    assert "network" not in banner(Settings(), engine, port=80)
    row = "  network   http://192.168.1.5:80"
    assert f"{row}; by a name other than .local: --allowed-hosts NAME\n" in banner(
        Settings(host="0.0.0.0"), engine, port=80
    )
    assert f"{row}\n" in banner(Settings(host="0.0.0.0", api_key=("k",)), engine, port=80)


def test_the_panel_says_how_weights_are_quantized() -> None:
    loaded: Any = SimpleNamespace(
        device="cpu", dtype="torch.bfloat16", max_model_len=64, op_by_op=None, inexact=None, states=None
    )
    loaded.cache = SimpleNamespace(num_blocks=8)
    loaded.model_config = SimpleNamespace(quantization=SimpleNamespace(name="AWQ, 4 bits"), description="")
    engine: Any = SimpleNamespace(config=FACTS, loaded=loaded, default_sampling_params={}, default_sampling_source="")
    assert "cpu, bfloat16, weights AWQ, 4 bits\n" in banner(Settings(), engine, port=80)
    loaded.model_config.quantization = None
    assert "cpu, bfloat16\n" in banner(Settings(), engine, port=80)
    loaded.states = StateSpec(num_live=8, num_checkpoints=20, slot_bytes=2**21)
    row = "  states    8 slots for requests + 20 for checkpoints, 2 MiB each\n"
    assert row in banner(Settings(), engine, port=80)
    loaded.op_by_op = "softmax is no native op"
    assert "cpu, bfloat16, op by op (softmax is no native op)\n" in banner(Settings(), engine, port=80)
