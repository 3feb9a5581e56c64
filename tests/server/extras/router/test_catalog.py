"""Catalog of models: names, ids, folders, settings of single models, and mistakes; and the model of a request."""

from pathlib import Path
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError, ModelNotFoundError
from splitfuse.server.extras.router.catalog import Catalog
from splitfuse.server.extras.router.destination import destination_of, keep_alive_of
from splitfuse.server.http.errors import ResultNotFoundError
from splitfuse.server.settings import Settings


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in ("alpha.gguf", "Beta-Q4_K_M.gguf", "mmproj-alpha.gguf", "gamma/config.json", "notes/readme.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"GGUF")
    return folder


def catalog_of(folder: Path, **settings: Any) -> Catalog:
    return Catalog(Settings(model="demo", **settings), folder)


def test_a_folder_has_its_models_and_named_ones_come_first(models: Path) -> None:
    catalog = catalog_of(models, models=("demo", "demo-draft"), models_dir=str(models))
    assert list(catalog.entries) == ["splitfuse-demo-5m", "demo-draft", "Beta-Q4_K_M", "alpha", "gamma"]
    assert catalog.named("beta-q4_k_m:latest").name == "Beta-Q4_K_M"
    assert catalog.named(str(models / "alpha.gguf")).name == "alpha"
    with pytest.raises(ModelNotFoundError, match=r"served: splitfuse-demo-5m, .*did you mean 'gamma'\?"):
        catalog.named("Gama")


def test_each_server_has_its_own_results_ids_and_settings(models: Path, tmp_path: Path) -> None:
    own = {"gamma": {"max_model_len": 64, "pin": True}, "alpha": {"served_model_name": "first"}}
    catalog = catalog_of(
        models, models_dir=str(models), models_max=2, model_settings=own, results=str(tmp_path / "kept"), id_tag="x-"
    )
    assert list(catalog.entries) == ["Beta-Q4_K_M", "first", "gamma"]
    gamma = catalog.named("gamma")
    assert (gamma.settings.max_model_len, gamma.is_pinned) == (64, True)
    assert gamma.settings.id_tag == f"x-{gamma.tag}"
    assert len({entry.results for entry in catalog}) == 3
    assert {entry.results.parent for entry in catalog} == {tmp_path / "kept"}
    assert not any(entry.settings.has_several_models for entry in catalog)
    in_file = catalog_of(models, models_dir=str(models), results=str(tmp_path / "kept.db"))
    assert all(entry.results.name.startswith("kept.") for entry in in_file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": ("demo", "nowhere.gguf")}, "nowhere.gguf"),
        ({"models_dir": "/nowhere"}, "no such folder"),
        ({"models": ("{}/alpha.gguf", "{}/../models/alpha.gguf")}, "would both be served as alpha"),
        ({"models": ("demo", "demo-draft"), "model_settings": {"other": {}}}, "'other' is none of"),
        ({"models": ("demo", "demo-draft"), "model_settings": {"demo": {"pin": True}}}, "others would wait for ever"),
        ({"models": ("demo", "demo-draft"), "model_settings": {"demo": {"max_len": 1}}}, "'max_len' is no setting"),
        ({"models": ("demo", "demo-draft"), "served_model_name": "x"}, "--served-model-name does not work"),
        ({"models": ("demo", "demo-draft"), "results": "postgresql://h/d"}, "give a folder"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str, models: Path) -> None:
    if "models" in settings:
        settings = {**settings, "models": tuple(name.format(models) for name in settings["models"])}
    with pytest.raises(ConfigError, match=message):
        catalog_of(models, **settings)


def test_a_request_goes_to_its_id_then_to_its_name_then_to_the_first_model(models: Path) -> None:
    catalog = catalog_of(models, models=("demo", "demo-draft"))
    demo, draft = catalog
    for method, path, query, fields, entry in [
        ("POST", "/v1/chat/completions", {}, {"model": "demo-draft"}, draft),
        ("POST", "/api/show", {}, {"name": "demo-draft:latest"}, draft),
        ("POST", "/generate", {}, {}, demo),
        ("GET", "/results", {"model": "demo-draft"}, {}, draft),
        ("GET", f"/result/{draft.tag}abc/stream", {}, {}, draft),
        ("DELETE", f"/v1/files/file-{draft.tag}abc", {}, {}, draft),
        ("GET", f"/v1/chat/completions/chatcmpl-{draft.tag}abc", {}, {}, draft),
        ("POST", "/v1/responses", {}, {"previous_response_id": f"resp_{draft.tag}abc", "model": "demo"}, draft),
        ("POST", "/v1/batches", {}, {"input_file_id": f"file-{draft.tag}abc"}, draft),
        ("POST", "/fork", {}, {"seq_id": f"{draft.tag}abc"}, draft),
    ]:
        assert destination_of(catalog, method, path, query, fields).entry is entry, path
    for path, kind in [("/result/abc", "result"), (f"/v1/files/{draft.tag[:-1]}", "file"), ("/v1/batches/x", "batch")]:
        with pytest.raises(ResultNotFoundError, match=f"no such {kind}"):
            destination_of(catalog, "GET", path, {}, {})
    assert not destination_of(catalog, "GET", "/stats/stream", {}, {}).needs_turn
    assert destination_of(catalog, "GET", "/results", {}, {}).needs_turn
    assert not destination_of(catalog, "POST", "/fork", {}, {}).may_repeat
    assert destination_of(catalog, "POST", "/generate", {}, {}).needs_key
    assert not destination_of(catalog, "POST", "/generate", {}, {"stream": True}).needs_key


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(300, 300), ("5m", 300), ("1h30m", 5400), (0, 0), ("0s", 0), (-1, float("inf")), ("x", None), ("5 m", None)],
)
def test_ollamas_keep_alive_is_read(value: object, seconds: float | None) -> None:
    assert keep_alive_of("/api/chat", {"keep_alive": value}) == seconds
    assert keep_alive_of("/v1/chat/completions", {"keep_alive": value}) is None


def test_each_model_leaves_its_blocks_on_disk_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def caches(**settings: Any) -> list[tuple[str | None, int]]:
        entries = list(catalog_of(tmp_path, models=("demo", "demo-draft"), **settings))
        values: list[Any] = [entry.settings for entry in entries]
        return [(value.prefix_cache_dir, value.prefix_cache_disk_bytes) for value in values]

    (first, num_bytes), (second, _) = caches(device="cpu")
    assert Path(str(first)).parent == Path(str(second)).parent == tmp_path
    assert first != second
    assert 0 < num_bytes <= 5 * 2**30
    assert caches(device="cpu", prefix_cache_disk_bytes=1000)[0][1] == 500
    assert Path(str(caches(prefix_cache_dir=str(tmp_path / "own"))[0][0])).parent == tmp_path / "own"
    for settings in ({"device": "cuda"}, {"enable_prefix_caching": False}, {"async_scheduling": True}):
        assert caches(**{"device": "cpu", **settings})[0][0] is None
    for has_gpu in (True, False):
        monkeypatch.setattr("splitfuse.server.extras.router.catalog.may_have_gpu", lambda has_gpu=has_gpu: has_gpu)
        assert (caches()[0][0] is None) == has_gpu
