"""Results on disk of adapters: a killed server goes on with the same adapter, or says which is missing."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import Reader, comparable, whole_result
from serving import ServerProcess, SlowSteps
from tiny_adapters import random_adapter, save_adapter
from tiny_models import make_model, save_model

PROMPT = list(range(20, 100))
BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "model": "a", "max_tokens": 120, "temperature": 0, "ignore_eos": True},
    {"prompt": PROMPT[:70], "model": "b", "max_tokens": 60, "seed": 7, "ignore_eos": True, "n": 2},
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True},
]


@pytest.mark.parametrize("change", ["none", "unnamed", "other"])
def test_killed_it_goes_on_with_the_same_adapters(change: str, tmp_path: Path) -> None:
    save_model("llama-gqa-tied", tmp_path / "model")
    for index, name in enumerate("abc"):
        save_adapter(tmp_path / name, random_adapter(make_model("llama-gqa-tied"), seed=index))
    args = ("--model", str(tmp_path / "model"), "--dtype", "float32", "--device", "cpu", "--enable-lora")
    args += ("--served-model-name", "base")
    modules = ("--lora-modules", f"a={tmp_path}/a", f"b={tmp_path}/b")
    results = ("--results", str(tmp_path / "results.db"))
    with ServerProcess(*args, *modules) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        expected = [comparable(whole_result(client, seq_id)) for seq_id in submitted(client)]
    assert expected[0]["token_ids"] != expected[2]["token_ids"]
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, *modules, *results, program=steps.program) as server:
        with httpx.Client(base_url=server.url, timeout=70) as client:
            seq_ids = submitted(client)
            reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
            reader.until_begun()
        server.process.kill()
    modules = {
        "none": modules,
        "unnamed": modules[:1] + modules[2:],
        "other": (*modules[:1], f"a={tmp_path}/c", modules[2]),
    }[change]
    with ServerProcess(*args, *modules, *results) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        first, *others = [whole_result(client, seq_id) for seq_id in seq_ids]
        assert [comparable(result) for result in others] == expected[1:]
        if change == "none":
            assert comparable(first) == expected[0]
        else:
            assert first["status"] == "failed"
            reason = (
                "its adapter 'a' is not loaded; name it in --lora-modules" if change == "unnamed" else "its adapter"
            )
            assert reason in first["error"]["message"]


def submitted(client: httpx.Client) -> list[str]:
    return [client.post("/generate", json=body).json()["seq_id"] for body in BODIES]
