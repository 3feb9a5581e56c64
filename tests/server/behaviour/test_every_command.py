"""Every command of the documents runs as a process, with every flag that its --help has.

Most are forked (tests/support/forked_process.py). Commands that import more of torch than the fork has are processes of
their own: here `bench offline`, in tests/server/test_cli.py `plan` and --load-format dummy.
"""

import argparse
import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_process import ForkedProcess
from serving import ServerProcess, run_cli
from tables import table

from splitfuse.client.bench.options import options_parser
from splitfuse.engine.config.setting import Setting, settings_of
from splitfuse.engine.extras.bench.command import offline_parser
from splitfuse.server.commands.parsers.tree import build_parser
from splitfuse.server.settings import Settings

ROOT = Path(__file__).parents[3]
_SETTINGS = settings_of(Settings)
# Values of settings whose default is none, or would change what the test can see.
VALUES: dict[str, Any] = table(__file__, "values")
# Settings that need another machine, service or model, and those that name what another one names.
NOT_HERE = table(__file__, "not here")


def setting_flags(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the command line that gives every setting of these names a value, its default if nothing else is known."""
    (folder / "keys").write_text("open sesame\n")
    (folder / "keys").chmod(0o600)
    (folder / "template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    (folder / "splitfuse.yaml").write_text("max_results: 100\n")
    values = VALUES | {
        "api_key_file": folder / "keys",
        "chat_template": folder / "template.jinja",
        "record": folder / "run.jsonl",
        "results": folder / "results.db",
    }
    for setting in (_SETTINGS[name] for name in names if name != "model" and name not in NOT_HERE):
        yield from _words(setting, values.get(setting.name, setting.default))


def _words(setting: Setting, value: Any) -> Iterator[str]:
    if setting.kind is bool:
        yield setting.flag if value else f"--no-{setting.flag.removeprefix('--')}"
    elif value is not None and value != ():
        yield from (setting.flag, str(value))


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long flags of a command that its --help shows."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help")
    return {
        action.option_strings[-1]
        if not isinstance(action, argparse.BooleanOptionalAction)
        else action.option_strings[0]
        for action in shown
        if action.option_strings
    }


def check_complete(parser: argparse.ArgumentParser, *runs: Iterable[str], besides: Iterable[str] = ()) -> None:
    """Assert that the runs have every flag."""
    words = {re.sub("^--no-", "--", word) for run in runs for word in run}
    dests = {flag: re.sub("^--no-", "--", flag) for flag in flags_of(parser)}
    missing = {flag for flag, plain in dests.items() if not {plain, flag} & words}
    known = {_SETTINGS[name].flag for name in NOT_HERE} | {*besides}
    known |= {setting.flag for setting in _SETTINGS.values() if setting.default in (None, ()) and setting.kind is str}
    assert missing - known == set()


def parser_of(command: str) -> argparse.ArgumentParser:
    return build_parser([command])[1][command]


def ok(*args: str, stdin: str = "", code: int = 0) -> str:
    """Run a command as a forked process to its end. Returns its output."""
    process = ForkedProcess(["-m", "splitfuse.server", *args], stdin=stdin)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == code, (args, stderr)
    assert "unexpected" not in stderr
    assert "Traceback" not in stderr
    return stdout


def test_a_served_run_and_what_follows_from_its_files(tmp_path: Path) -> None:
    serve = [*setting_flags(tmp_path, _SETTINGS), "--config", str(tmp_path / "splitfuse.yaml")]
    check_complete(parser_of("serve"), serve)
    trace, result = tmp_path / "trace.csv", tmp_path / "bench.json"
    with trace.open("w") as file:
        csv.writer(file).writerows(
            [("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("2023-11-16 18:17:03.9799600", 9, 3)]
        )
    with ServerProcess("demo", *serve) as server:
        key = ["--api-key", "sesame"]
        bench = [
            *(
                "--base-url", server.url, "--backend", "openai", "--endpoint", "/v1/completions", "--model",
                "everything",
            ),
            *(*key, "--temperature", "0", "--ignore-eos", "--dataset-name", "random", "--num-prompts", "2"),
            *("--random-input-len", "8", "--random-output-len", "4", "--random-range-ratio", "0", "--seed", "1"),
            *("--text", "--vocab-size", "400", "--request-rate", "inf", "--burstiness", "1", "--max-concurrency", "2"),
            *("--goodput", "ttft:60000", "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99"),
            *("--save-result", str(result)),
            *("--workers", "1"),
        ]  # fmt: skip
        ok("bench", "serve", *bench)
        port = server.url.rpartition(":")[2]
        traced = ["--trace", str(trace), "--scale", "1", "--stretch", "0.001", "--host", "127.0.0.1", "--port", port]
        saved = ["--save-result", "--result-filename", "again.json", "--result-dir", str(tmp_path)]
        ok("bench", "serve", *traced, *saved, *key)
        check_complete(options_parser(), bench, traced, saved)
        there = ["--url", server.url, *key]
        assert ok("generate", *there, "-p", "Once", "-n", "2").strip()
        talk = [*there, "--system", "Be brief.", "--verbose", "--plain", "-n", "4"]
        assert ok("chat", *talk, stdin="Hello\n/bye\n").strip()
        server.signal()
        assert server.wait()[0] == 0
    assert json.loads(result.read_text())["completed"] == 2
    assert (tmp_path / "again.json").exists()
    ok("replay", str(tmp_path / "run.jsonl"))
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    check_complete(parser_of("plot"), ["--output"])
    ok("plot", str(tmp_path / "run.jsonl"), "--output", str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_generate_and_chat_with_every_flag_of_the_engine(tmp_path: Path) -> None:
    parser = parser_of("generate")
    dests = {action.dest for action in parser._actions}
    flags = [*setting_flags(tmp_path, [name for name in _SETTINGS if name in dests])]
    flags += ["--config", str(tmp_path / "splitfuse.yaml"), "--max-tokens", "4", "--temperature", "0"]
    check_complete(parser, flags, ["--prompt"], besides=["--url", "--api-key"])
    assert ok("generate", "demo", *flags, "--prompt", "Once upon a time").strip()
    check_complete(parser_of("chat"), flags, besides=["--url", "--api-key", "--system", "--verbose", "--plain"])
    assert ok("chat", "demo", "--max-tokens", "4", stdin="Hello\n/bye\n").strip()


def test_verify_with_every_flag_of_the_engine(tmp_path: Path) -> None:
    parser = parser_of("verify")
    dests = {action.dest for action in parser._actions} - {"model"}
    flags = [*setting_flags(tmp_path, [name for name in _SETTINGS if name in dests]), "--model", "demo", "--json"]
    check_complete(parser, flags, ["--config", "--url", "--api-key"])
    (tmp_path / "receipt.json").write_text("{}")
    ok("verify", str(tmp_path / "receipt.json"), *flags, code=2)  # its form is refused before a model is loaded


def test_plan(tmp_path: Path) -> None:
    check_complete(parser_of("plan"), setting_flags(tmp_path, _SETTINGS), ["--memory", "--config"])
    assert "KV cache" in ok("plan", "demo", "--memory", "24GB", "--dtype", "float32")


def test_simulate_with_every_flag(tmp_path: Path) -> None:
    names = [name for name, setting in _SETTINGS.items() if setting.flag in flags_of(parser_of("simulate"))]
    load = ["--limit", "5", "--request-rate", "9", "--clients", "2", "--prompt-len", "30", "--output-len", "4"]
    cost = ["--cost", "0.01,0.0001,0", "--swap-cost", "0.001", "--sla-prompt-rate", "99", "--sla-token-rate", "2"]
    written = ["--json", "--scale", "1", "--stretch", "1"]
    flags = [*setting_flags(tmp_path, names)]
    check_complete(parser_of("simulate"), load, cost, written, flags, ["--trace", "--config"])
    several = [*load[:2], *load[4:]]  # random arrivals and a closed loop exclude each other
    assert json.loads(ok("simulate", *several, "--clients", "2", *cost, *written, *flags))


@pytest.mark.thorough
def test_bench_offline_with_every_flag(tmp_path: Path) -> None:
    flags = [
        *("--model", "llama-40m", "--peer", "none", "--points", "1x8", "--output-len", "2", "--pairs", "1"),
        *(
            "--device", "cpu", "--dtype", "float32", "--max-num-batched-tokens", "64", "--num-threads", "1", "--seed",
            "1",
        ),
        *("--save-result", str(tmp_path / "offline.json")),
    ]  # fmt: skip
    check_complete(offline_parser(), flags)
    result = run_cli("bench", "offline", *flags)  # a fork has what this process must import by itself
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads((tmp_path / "offline.json").read_text())


def test_the_models_and_servers_of_this_machine() -> None:
    assert "demo" in ok("models")
    assert "LlamaForCausalLM" in ok("models", "--supported")
    assert json.loads(ok("models", "--json"))
    assert json.loads(ok("ps", "--json", "--api-key", "sesame")) == []
    ok("rm", "nobody/nothing", "--yes", code=2)
    assert json.loads(ok("config", "demo", "--port", "9", "--json"))["port"]["source"] == "flag"
    assert ok("help", "pull") == ok("pull", "--help")


def test_doctor() -> None:
    check_complete(parser_of("doctor"), ["--json", "--build"])
    assert json.loads(ok("doctor", "demo", "--json", "--build"))


def test_the_documents_name_no_other_command() -> None:
    """A command of a table that no test of this file runs would be one that nobody has tried."""
    run = {*re.findall(r'(?:ok|run_cli)\("([a-z]+)"', Path(__file__).read_text()), "serve"}
    tables = (path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "server/docs").glob("*.md"))))
    lines = [line for text in tables for line in text.splitlines() if line.startswith("| `splitfuse ")]
    named = {match for line in lines for match in re.findall(r"`(?:splitfuse )?([a-z]+)[ `]", line.split("|")[1])}
    assert named & {*build_parser(["simulate"])[1]} - run == set()
