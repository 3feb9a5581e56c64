"""`splitfuse plan`: the figures that `serve` prints, a way out where nothing fits, and the spelling of sizes."""

import re

import pytest
from tiny_models import save_model

from splitfuse.engine.errors import ConfigError
from splitfuse.server.cli import main
from splitfuse.server.commands.plan import memory_size, size_text


def printed(capfd, *args):
    code = main(["plan", *args])
    out, err = capfd.readouterr()
    assert err == ""
    return code, out


def test_it_prints_the_row_that_serve_prints(capfd, live_server):
    flags = ("--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")  # live_server's
    code, out = printed(capfd, "demo", *flags)
    assert code == 0
    pattern = r"KV cache +(\d+ blocks = \d+ tokens = [\d.]+ requests of \d+)"
    assert re.findall(pattern, out) == re.findall(pattern, live_server.banner) != []
    assert re.search(r"device +(.*)", out)[1] == re.search(r"device +(.*)", live_server.banner)[1] == "cpu, float32"


def test_where_nothing_fits_it_says_what_would(capfd):
    code, out = printed(capfd, "demo", "--memory", "402MiB", "--device", "cpu", "--dtype", "float32")
    assert code == 1
    assert "not one request of" in out
    (length,) = re.findall(r"try +--max-model-len (\d+)", out)
    code, out = printed(
        capfd, "demo", "--memory", "402MiB", "--device", "cpu", "--dtype", "float32", "--max-model-len", length
    )
    assert code == 0


@pytest.mark.parametrize(("device", "name"), [("cpu", "int8"), ("cuda", "fp8")])
def test_a_rounded_cache_is_a_way_out(capfd, device, name):
    sizes = ("--memory", "4GiB", "--kv-cache-memory-bytes", "4MiB")
    flags = ("demo", "--device", device, "--dtype", "bfloat16", *sizes)
    code, out = printed(capfd, *flags)
    assert code == 1
    assert f"try       --kv-cache-dtype {name}: a token " in out
    assert printed(capfd, *flags, "--kv-cache-dtype", name)[0] == 0


def test_ranks_are_named(capfd):
    _, out = printed(capfd, "demo", "--memory", "24GB", "--device", "cuda", "--tensor-parallel-size", "2")
    assert re.search(r"weights +[\d.]+ MiB on each rank", out)
    assert "GPUs      2, one for each rank; written and tested without cards: never run on two GPUs" in out


def test_a_wrong_size_and_a_model_that_is_not_here_are_one_line(one_line_here):
    one_line_here(["plan", "demo", "--memory", "many"], "--memory 'many'", "24GB")
    one_line_here(["plan", "owner/name:file.gguf"], "download the file first")
    one_line_here(["plan", "demo", "--tensor-parallel-size", "0"], "at least 1")


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * 10**9), ("1.5 gib", 3 * 2**29), ("512MiB", 2**29), ("4096", 4096)]
)
def test_sizes(text, size):
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "1 G B"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ConfigError):
        memory_size(text)


def test_sizes_are_shown_in_three_digits():
    assert [size_text(size) for size in (7, 1536, 20 * 2**20, 5 * 2**29)] == ["7 bytes", "1.5 KiB", "20 MiB", "2.5 GiB"]


def test_slots_of_recurrent_states_are_named(capfd, tmp_path):
    save_model("lfm2", tmp_path)
    capfd.readouterr()
    _, out = printed(capfd, str(tmp_path), "--device", "cpu", "--memory", "1GiB", "--max-num-seqs", "8")
    assert re.search(r"states +16 slots for requests \+ \d+ for checkpoints, [\d.e-]+ MiB each: [\d.]+ [KM]iB", out)


def test_the_prefix_cache_on_disk_has_a_row(capfd):
    sizes = ("--prefix-cache-dir", "nowhere", "--prefix-cache-disk-bytes", "1GiB")
    _, out = printed(capfd, "demo", "--device", "cpu", "--dtype", "float32", *sizes)
    assert re.search(r"on disk +\d+ tokens of prefixes at most: 1 GiB", out)
