"""`splitfuse agents`: settings that each agent's own format reads, with the server's address, model and context."""

import json
import tomllib

import httpx
import pytest
import yaml
from serving import ServerProcess

from splitfuse.server.commands.command_line import run


def test_every_agents_settings_are_printed(live_server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agents"], is_debug=False) == 0
    served = httpx.get(f"{live_server.url}/v1/models").json()["data"][0]
    printed = {}
    for name in capsys.readouterr().out.split():
        assert run(["agents", name, "--url", live_server.url], is_debug=False) == 0
        printed[name] = capsys.readouterr().out
        assert live_server.url in printed[name]
        assert "{" not in printed[name].replace('{"', "").replace("{\n", "").replace("{contextLength", "")
    assert len(printed) >= 10
    codex = tomllib.loads(printed["codex"])
    assert codex["model_providers"]["splitfuse"]["base_url"] == f"{live_server.url}/v1"
    assert (codex["model"], codex["model_context_window"]) == (served["id"], served["max_model_len"])
    models = json.loads(printed["opencode"])["provider"]["splitfuse"]["models"]
    assert models[served["id"]]["limit"]["context"] == served["max_model_len"]
    options = yaml.safe_load(printed["continue"])["models"][0]["defaultCompletionOptions"]
    assert options == {"contextLength": served["max_model_len"]}
    assert f"export ANTHROPIC_BASE_URL={live_server.url}\n" in printed["claude-code"]


@pytest.mark.parametrize(
    ("words", "hint"), [("cdex", "codex, claude-code"), ("codex --url localhost:1", "splitfuse serve MODEL")]
)
def test_a_wrong_name_or_server_is_one_line(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agents", *words.split()], is_debug=False) == 2
    assert hint in capsys.readouterr().err
