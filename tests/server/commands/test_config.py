"""`splitfuse config`: every value and its source."""

import json

import pytest

from splitfuse.server.cli import main
from splitfuse.server.commands.settings_sources import ALL_FIELDS


@pytest.fixture
def config(capfd):
    def config(*words):
        assert main(["config", *words]) == 0
        return capfd.readouterr().out

    return config


def test_every_value_has_a_source(config, tmp_path, monkeypatch):
    path = tmp_path / "splitfuse.yaml"
    path.write_text("seed: 3\nport: 1\n")
    monkeypatch.setenv("SPLITFUSE_PORT", "2")
    monkeypatch.setenv("SPLITFUSE_KV_CACHE_DTYPE", "auto")
    words = ["demo", "--config", str(path), "--device", "cpu", "--max-num-batched-tokens", "300"]
    values = json.loads(config("--json", *words))
    assert list(values) == list(ALL_FIELDS)
    assert values["model"] == {"value": "demo", "source": "flag", "place": "MODEL"}
    assert values["seed"] == {"value": 3, "source": "file", "place": str(path)}
    assert values["port"] == {"value": 2, "source": "environment", "place": "SPLITFUSE_PORT"}
    assert values["kv_cache_dtype"] == {"value": "auto", "source": "environment", "place": "SPLITFUSE_KV_CACHE_DTYPE"}
    assert values["max_num_batched_tokens"] == {"value": 300, "source": "flag", "place": "--max-num-batched-tokens"}
    assert values["block_size"] == {"value": 16, "source": "default"}
    lines = config(*words).splitlines()
    assert [line.split() for line in lines if line.startswith("  seed ")] == [["seed", "3", "file", str(path)]]
    assert len([line for line in lines if line.startswith("  ")]) == len(ALL_FIELDS)


def test_secrets_are_not_shown(config, monkeypatch):
    monkeypatch.setenv("SPLITFUSE_RESULTS", "postgresql://user:sekrit@host/db")
    for text in (config("--api-key", "sekrit"), config("--api-key", "sekrit", "--json")):
        assert "sekrit" not in text
        assert text.count("(set, not shown)") == 2


def test_what_a_start_decides_has_its_value_and_source(config):
    values = json.loads(config("demo", "--resolved", "--json", "--max-num-seqs", "7", "--num-threads", "3"))
    assert values["max_model_len"] == {"value": 2048, "source": "model"}
    assert values["dtype"]["value"] in ("float32", "bfloat16")
    assert (values["device"]["source"], values["num_threads"]["source"]) == ("machine", "flag")
    assert values["max_num_seqs"] == {"value": 7, "source": "flag", "place": "--max-num-seqs"}
    assert isinstance(values["max_num_batched_tokens"]["value"], int)


def test_wrong_settings_are_refused(one_line_here):
    one_line_here(["config", "--profile", "throughput"], "--profile throughput is not taken: here it is each setting")
    one_line_here(["config", "--prot", "1"], "did you mean --port?")
