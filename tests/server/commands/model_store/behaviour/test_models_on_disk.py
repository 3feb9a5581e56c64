"""`splitfuse pull`, `models` and `rm` over a cache of the Hugging Face hub, filled by a stand-in of the hub."""

import json
import shutil
from pathlib import Path

import pytest
from gguf_files import write_gguf
from hub_stand_in import hub_of
from serving import run_cli

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import ConfigError
from splitfuse.server.cli import main
from splitfuse.server.commands.model_store.pull import _part_of, check_disk

MODEL = "tiny/demo"
SHORT = "qwen3:0.6b"


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """Return a cache with a folder of safetensors, which `pull` has fetched."""
    files = {path.name: path.read_bytes() for path in DEMO_FOLDER.iterdir() if path.suffix in (".json", ".safetensors")}
    home = tmp_path_factory.mktemp("home")
    with hub_of(MODEL, {**files, "other.bin": bytes(100)}) as url:
        env = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        fetched = run_cli("pull", MODEL, env=env)
        assert (fetched.returncode, fetched.stderr) == (0, f"{MODEL}: {len(files)} files, 11 MB\n")
        assert run_cli("pull", "tiny/other", env=env).stderr.startswith(
            "splitfuse: error: tiny/other cannot be fetched: "
        )
    folder = Path(fetched.stdout.strip().rpartition(": ")[2])
    assert {path.name for path in folder.iterdir()} == set(files)
    return home / "hub"


@pytest.fixture
def cache(filled, tmp_path, monkeypatch) -> Path:
    """Return a copy of the cache, with a GGUF file of a short name and an unknown architecture."""
    folder = tmp_path / "hub"
    shutil.copytree(filled, folder, symlinks=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    add(folder, "Qwen/Qwen3-0.6B-GGUF", lambda path: write_gguf(path / "Qwen3-0.6B-Q8_0.gguf", "qwen3"))
    add(folder, "other/unknown", write_unknown)
    return folder


def add(cache, hub_id, write):
    """Add a snapshot of files without links, as some systems have them."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    for name in ("blobs", "refs", "snapshots/aa"):
        (repository / name).mkdir(parents=True)
    (repository / "refs/main").write_text("aa")
    write(repository / "snapshots/aa")


def write_unknown(folder):
    (folder / "config.json").write_text('{"architectures": ["RwkvForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(bytes(10))


def listed(capfd):
    capfd.readouterr()
    assert main(["models", "--json"]) == 0
    return {entry["name"]: entry for entry in json.loads(capfd.readouterr().out)}


def test_models_lists_the_disk(cache, capfd, monkeypatch):
    models = listed(capfd)
    assert {MODEL, SHORT, "other/unknown", "demo"} <= set(models)
    assert models[MODEL]["family"] == "Llama 1 to 3"
    assert models[MODEL]["format"] == "safetensors bfloat16"
    assert models[MODEL]["bytes"] == (DEMO_FOLDER / "model.safetensors").stat().st_size
    assert (models[SHORT]["family"], models[SHORT]["fits"]) == ("Qwen3", True)
    assert (models["other/unknown"]["family"], models["other/unknown"]["fits"]) == (None, False)
    monkeypatch.setattr("splitfuse.server.commands.model_store.model_table.available_memory", lambda: 10**7)
    assert main(["models"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["tiny/demo", "11", "MB", "Llama", "1", "to", "3", "safetensors", "bfloat16", "no"] in rows
    assert ["qwen3:8b", "5.0", "GB", "Qwen3,", "8B,", "4", "bits", "no"] in rows
    assert [row[0] for row in rows if row].count(SHORT) == 1


def test_models_lists_families(capfd):
    assert main(["models", "--supported"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["Qwen3", "Qwen3ForCausalLM", "qwen3,", "qwen3vl", "Qwen/Qwen3-0.6B"] in rows
    assert ["Falcon", "FalconForCausalLM", "-", "tiiuae/falcon-7b"] in rows


def test_a_plan_reads_a_file_of_the_cache(cache, capfd, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["plan", SHORT]) == 0
    assert "Qwen3ForCausalLM" in capfd.readouterr().out


@pytest.mark.parametrize("name", [MODEL, SHORT])
def test_rm_asks_and_removes(name, cache, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["rm", name]) == 1
    assert name in listed(capfd)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert main(["rm", name]) == 0
    assert capfd.readouterr().out.startswith(f"removed {name}, ")
    left = listed(capfd)
    assert name not in left
    assert {MODEL, SHORT, "other/unknown"} - {name} <= set(left)
    assert [path for path in cache.glob("models--*/blobs/*") if name == MODEL] == []


def test_rm_without_a_terminal_needs_yes(cache, one_line_here, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    one_line_here(["rm", MODEL], "remove tiny/demo, 11 MB? No terminal to ask at; --yes answers")
    one_line_here(
        ["rm", "tiny/dmo", "-y"], "tiny/dmo is not in the cache; there is other/unknown, qwen3:0.6b, tiny/demo"
    )
    assert main(["rm", MODEL, "--yes"]) == 0


def test_rm_keeps_files_of_the_user(cache, one_line_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    one_line_here(["rm", "mine", "-y"], "mine is a file or folder of yours")


def test_free_disk_is_checked(tmp_path):
    check_disk(1, tmp_path / "not" / "there")
    check_disk(0, tmp_path)
    with pytest.raises(ConfigError, match=r"1000000000\.0 GB are to be fetched and .* free on the disk of .*not"):
        check_disk(10**18, tmp_path / "not" / "there")


def test_the_bars_of_files_count_into_one():
    class Total:
        n = 0

        def update(self, num_bytes):
            self.n += num_bytes

    total = Total()
    for initial in (0, 5):
        with _part_of(total)(total=10, initial=initial, name="a file") as part:
            part.update(3)
    assert total.n == 11
