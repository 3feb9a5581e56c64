"""Wrong command lines: each is answered by one line that names the right thing to type."""

import errno
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

# Command line, and parts of the answer. The folder `models` has tiny-q4.gguf and the model folder `real`.
WRONG = {
    # models and files
    "serve demmo": ["model folder 'demmo' does not exist; did you mean demo?"],
    "serve smolm2": ["did you mean smollm2?"],
    "serve SmolLM-2": ["did you mean smollm2?"],
    "chat Demo": ["did you mean demo?"],
    "plan demmo": ["did you mean demo?"],
    "serve models/tiny-q8.gguf": ["file 'models/tiny-q8.gguf' does not exist; did you mean models/tiny-q4.gguf?"],
    "serve models/nofile.gguf": ["file 'models/nofile.gguf' does not exist; its folder has tiny-q4.gguf"],
    "serve nowhere/file.gguf": ["does not exist, nor does its folder nowhere"],
    "serve ./nothing/alike": ["give a folder, a .gguf file, or a hub id like owner/name"],
    # a prompt where none is read
    "generate --model demo Once": ["to continue a text: splitfuse generate demo -p Once"],
    "generate demo Once upon": ["splitfuse generate demo -p 'Once upon'"],
    "generate Once upon": ["splitfuse generate -p 'Once upon'"],
    "chat demo hello": ["chat reads what you type; for one text: splitfuse generate demo -p hello"],
    # commands of other tools, and slips
    "list": ["list is not a command; did you mean `splitfuse "],
    "ls": ["did you mean `splitfuse "],
    "show demo": ["did you mean `splitfuse "],
    "run demo": ["did you mean `splitfuse chat`?"],
    "start": ["did you mean `splitfuse serve`?"],
    "stop": ["`splitfuse serve` ends with Ctrl-C"],
    "status": ["did you mean `splitfuse "],
    "version": ["did you mean `splitfuse --version`?"],
    "--vesion": ["did you mean --version?"],
    "download demo": ["did you mean `splitfuse "],
    "collect-env": ["did you mean `splitfuse doctor`?"],
    "benchmark": ["did you mean `splitfuse bench`?"],
    "run-batch": ["then POST /v1/batches"],
    "smollm2": ["did you mean `splitfuse serve smollm2`?"],
    "models/tiny-q4.gguf": ["did you mean `splitfuse serve models/tiny-q4.gguf`?"],
    "serv": ["did you mean `splitfuse serve`?"],
    "genrate -p x": ["did you mean `splitfuse generate`?"],
    "bench srve": ["did you mean `splitfuse bench serve`?"],
    "bench offlin": ["did you mean `splitfuse bench offline`?"],
    "bench serve --request-rat 2": ["known to `splitfuse bench serve`; did you mean --request-rate?"],
    "bench serve smollm2": ["did you mean --model smollm2?"],
    "bench serve --num-prompts many": ["argument --num-prompts: 'many' must be a whole number"],
    "bench serve --seed x": ["argument --seed: 'x' is not an integer"],
    "bench serve --backend vlm": ["choose from 'openai', 'vllm'"],
    "bench offline --pear none": ["known to `splitfuse bench offline`; did you mean --peer?"],
    "bench offline --points 8": ["'8' is not NxL, such as 8x128"],
    "bench offline --pairs many": ["'many' is not an integer"],
    "bench offline --device gpu": ["choose from 'auto', 'cpu', 'cuda'"],
    "bench offline --model lama-40m": ["no such shape; did you mean llama-40m?"],
    "bench offline --model demmo": ["did you mean demo?"],
    "--port 8000": ["splitfuse serve --port 8000"],
    # flags
    "serve --prot 8000": ["did you mean --port?"],
    "serve --ctx-size 2048": ["here it is --max-model-len"],
    "serve -ngl 99": ["--device cpu, or nothing"],
    "generate -p x --max-token 5": ["did you mean --max-tokens?"],
    "top --urll x": ["did you mean --url?"],
    "top --url localhost:1": ["give the server's address with --url"],
    "serve --lora-modules a=b": ["lora_modules need enable_lora"],
    "serve --enable-lora --tensor-parallel-size 2": ["not built with tensor_parallel_size or slices", "leave one"],
    # values
    "serve --kv-cache-memory-bytes lots": [
        "is not a size: bytes, or a number and KB, MB, GB, TB",
        "such as 24GB or 16GiB",
    ],
    "plan demo --memory lots": ["--memory 'lots' is not a size: bytes", "KiB, MiB, GiB or TiB"],
    "serve --port 8000x": ["--port: '8000x' is not an integer"],
    "serve --port 99999": ["port must be an integer", "65535"],
    "serve --device gpu": ["not one of auto, cpu, cuda"],
    "serve --dtype fp16": ["not one of auto, float32, bfloat16, float16"],
    "serve --quantization q4": ["not one of int8, int4, fp8"],
    "serve --batching-policy spltfuse": ["not one of splitfuse"],
    "generate -p x --temperature hot": ["'hot' is not a number"],
    "completion tcsh": ["choose from 'bash', 'zsh', 'fish'"],
    "explain": ["FILE, ID"],
    "doctor --jsn": ["did you mean --json?"],
    "replay nofile.jsonl": ["nofile.jsonl cannot be read"],
    "serve --host 192.0.2.1": ["--host 192.0.2.1: no such address on this machine"],
    "serve --results models": ["--results models is a folder; name a file in it: --results models/results.db"],
    "serve --results nowhere/r.db": ["there is no folder nowhere; make it"],
    "serve --config nofile.yaml": ["--config nofile.yaml: no such file"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "models/real").mkdir(parents=True)
    (folder / "models/real/config.json").write_text("{}")
    (folder / "models/tiny-q4.gguf").write_bytes(b"GGUF")
    return folder


@pytest.mark.parametrize("line", WRONG)
def test_the_answer_names_what_to_type(
    line: str, folder: Path, one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPLITFUSE_PORT", "0")  # 8000 may be taken, and that would be the answer
    one_line_here(line.split(), *WRONG[line])


def test_there_are_forty() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("size", ["4 TiB", "12MB"])
def test_every_unit_is_read(size: str, one_line_here: Callable[..., None]) -> None:
    one_line_here(["serve", "--kv-cache-memory-bytes", size, "--port", "x"], "--port: 'x' is not an integer")


def test_a_file_that_may_not_be_read(one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:  # tests may run as root, who may read everything
        raise PermissionError(errno.EACCES, "Permission denied", "models/real")

    monkeypatch.setattr("splitfuse.server.commands.command_line.parse", refuse)
    one_line_here(["serve", "models/real"], "models/real: Permission denied; give this user the right to it")


def test_without_a_network_the_ways_out_are_named(
    folder: Path, one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    ways = ("give a folder", "HF_HUB_OFFLINE=1", "HF_ENDPOINT")
    one_line_here(["generate", "some/name", "-p", "x"], "the hub does not give it", *ways)
    monkeypatch.chdir(folder)
    one_line_here(["generate", "models/reall", "-p", "x"], "did you mean models/real?")
