"""Places for results that `--results` names."""

import sys

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings


def test_a_missing_driver_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "splitfuse.server.results.shared.postgres_store", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"psycopg.*: pip install 'psycopg\[binary\]'$"):
        build_app(Settings(results="postgresql://here/x"))


def test_other_servers_must_be_told_where_this_one_is() -> None:
    with pytest.raises(ConfigError, match="--results-url http://"):
        Settings(results="postgresql://here/x", host="0.0.0.0")
    Settings(results="postgresql://here/x", host="0.0.0.0", results_url="http://me:8000")


def test_the_database_is_told_nowhere() -> None:
    assert "secret" not in repr(Settings(results="postgresql://me:secret@here/x"))
