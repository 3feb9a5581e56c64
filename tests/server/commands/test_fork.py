"""`splitfuse fork`: the fork of an answer that a server keeps, and the token at which it parts."""

import json

import pytest
from serving import ServerProcess

from splitfuse.client import Client
from splitfuse.server.commands.command_line import run

FIELDS = {"max_tokens": 12, "temperature": 1.0, "seed": 7, "ignore_eos": True}


def test_the_fork_and_the_token_at_which_it_parts(
    live_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(live_server.url) as client:
        parent = client.generate("Once upon a time", **FIELDS)
        at = ["fork", parent.seq_id, "--url", live_server.url, "--at", "5"]
        assert run([*at, "--append-text", " zebra", "--json"], is_debug=False) == 0
        fork = json.loads(capsys.readouterr().out)
        assert client.job(fork["seq_id"]).result(0).text == fork["text"]
    assert (fork["parent"], fork["num_equal"]) == (parent.seq_id, 5)
    assert [token["token_id"] for token in fork["was"]] == parent.token_ids[5:6]
    assert " zebra".startswith(fork["now"][0]["text"])
    assert run([*at, "--append-text", " zebra"], is_debug=False) == 0
    text, _, last = capsys.readouterr().out.rpartition("\n\n")
    assert text == fork["text"]
    assert "5 of its 12 tokens" in last
    assert f"token 5 was {fork['was'][0]['text']!r}" in last
    assert run(at, is_debug=False) == 0
    assert "12 of its 12 tokens are those of" in capsys.readouterr().out
    assert run(["fork", "none", "--url", live_server.url], is_debug=False) == 2
    assert "no such" in capsys.readouterr().err.lower()
