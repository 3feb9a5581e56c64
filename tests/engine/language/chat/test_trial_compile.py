"""Long templates are compiled within limits; short ones cost no process."""

import time

import pytest
from shared_cores import CpuWait

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.language.chat import trial_compile
from splitfuse.engine.language.chat.trial_compile import check_compiles


def recipe(source):
    return {"source": source, "special_tokens": {}, "tool_source": None}


def test_a_template_that_compiles_passes_and_one_that_is_wrong_is_reported_elsewhere():
    check_compiles(recipe("{{ messages }}"))
    check_compiles(recipe("{% if %}"))


def test_a_template_that_compiles_too_slowly_is_refused(monkeypatch):
    monkeypatch.setattr(trial_compile, "COMPILE_LIMIT_S", 0.0)
    monkeypatch.setattr(trial_compile, "_SLACK_S", 0.3)
    start = time.monotonic()
    with CpuWait() as wait:
        with pytest.raises(ConfigError, match=r"of 700000 characters does not compile .* --chat-template"):
            check_compiles(recipe("{{ a }}" * 100_000))
        assert time.monotonic() - start < 15 * wait.factor, "not the slack that it has outside tests"


def test_the_process_limits_itself(monkeypatch):
    # The limit is the program's own: this process would wait for it.
    monkeypatch.setattr(trial_compile, "_SLACK_S", 600.0)
    with pytest.raises(ConfigError, match="does not compile within 5 s"):
        check_compiles(recipe("{{ a }}" * 100_000))
