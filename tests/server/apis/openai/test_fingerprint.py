"""`system_fingerprint` names what decides the tokens: equal servers share it, and each difference changes it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import ready_client
from tiny_adapters import random_adapter, save_adapter
from tiny_models import save_model

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.extras.weight_updates.control import EngineControl
from splitfuse.server.app import build_app
from splitfuse.server.service import Service
from splitfuse.server.settings import Settings

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5], "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}
SMALL: dict[str, Any] = {"device": "cpu", "num_kv_blocks": 64, "num_threads": 1}


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    app = build_app(Settings(**{**SMALL, **settings}))
    async with ready_client(app) as client:
        yield client, app.state.service


async def fingerprint(client: httpx.AsyncClient, path: str = "/v1/completions", **fields: Any) -> str:
    response = await client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    found: str = response.json()["system_fingerprint"]
    return found


async def fingerprint_with(**settings: Any) -> str:
    async with served(served_model_name="same", **settings) as (client, _):
        found = await fingerprint(client)
        assert found == await fingerprint(client, "/v1/chat/completions")
        return found


async def test_equal_servers_have_one_fingerprint_and_others_have_others(tmp_path: Path) -> None:
    shutil.copytree(DEMO_FOLDER, tmp_path / "copy", ignore=shutil.ignore_patterns("draft"))
    shutil.copytree(DEMO_FOLDER / "draft", tmp_path / "other")
    for path in DEMO_FOLDER.glob("*token*"):
        shutil.copy(path, tmp_path / "other")
    shutil.copy(DEMO_FOLDER / "chat_template.jinja", tmp_path / "other")
    first = await fingerprint_with()
    equal: list[dict[str, Any]] = [
        {},
        {"device": "auto", "dtype": "bfloat16"},
        {"model": str(tmp_path / "copy")},
        {"max_num_seqs": 3},
    ]
    for settings in equal:
        assert await fingerprint_with(**settings) == first, settings
    others: list[dict[str, Any]] = [
        {"model": str(tmp_path / "other")},
        {"dtype": "float32"},
        {"quantization": "int4"},
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"exact": False},
    ]
    found = {first, *[await fingerprint_with(**settings) for settings in others]}
    assert len(found) == 1 + len(others)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Folders of one model with two versions of its weights."""
    save_model("llama-gqa-tied", tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, tmp_path / "new" / "model.safetensors")
    return [tmp_path / "old", tmp_path / "new"]


async def test_an_update_of_weights_changes_the_fingerprint(folders: list[Path]) -> None:
    old, new = folders
    tensors = load_file(new / "model.safetensors")
    small_change = {**tensors, "model.norm.weight": tensors["model.norm.weight"] + 0.5}
    async with served(model=str(old)) as (client, service):
        update, found = service.engine.state(EngineControl).update, [await fingerprint(client)]
        for source in (new, tensors.items(), small_change.items(), tensors.items(), new, old):
            await update(source)
            found.append(await fingerprint(client))
    first, by_path, by_tensors, by_others, *again = found
    assert len({first, by_path, by_tensors, by_others}) == 4
    assert again == [by_tensors, by_path, first]
    async with served(model=str(new)) as (client, _):
        assert await fingerprint(client) == by_path
    async with served(model=str(old)) as (client, service):
        await service.engine.state(EngineControl).update(
            (name, torch.clone(tensor)) for name, tensor in tensors.items()
        )
        assert await fingerprint(client) == by_tensors


async def test_an_adapter_changes_the_fingerprint(tmp_path: Path) -> None:
    model = save_model("llama-gqa-tied", tmp_path / "model")
    modules = [f"{seed}={save_adapter(tmp_path / str(seed), random_adapter(model, seed=seed))}" for seed in (1, 2)]
    async with served(model=str(tmp_path / "model"), enable_lora=True, lora_modules=tuple(modules)) as (client, _):
        found = [await fingerprint(client, **fields) for fields in ({}, {"model": "1"}, {"model": "2"}, {})]
    assert found[0] == found[3]
    assert len(set(found)) == 3
