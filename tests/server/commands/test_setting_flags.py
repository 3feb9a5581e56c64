"""Pages of --help: the common one is short, and each setting stands on exactly one other."""

import re

import pytest

from splitfuse.engine.config.setting import settings_of
from splitfuse.engine.errors import ConfigError
from splitfuse.server.cli import main
from splitfuse.server.commands.setting_flags import SECTIONS, help_topic, help_words
from splitfuse.server.commands.settings_sources import ALL_FIELDS
from splitfuse.server.settings import Settings

MAX_LINES = 45


@pytest.fixture
def help_of(capfd, monkeypatch):
    def help_of(*words, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as info:
            main([*words])
        assert info.value.code == 0
        return capfd.readouterr().out

    return help_of


def flags(text):
    """Return the flags that have a text, without those that every page has."""
    return re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)[1:]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["serve", "generate", "chat", "plan", "simulate"])
def test_the_first_page_is_short(command, columns, help_of):
    assert len(help_of(command, "--help", columns=columns).splitlines()) <= MAX_LINES


def test_the_first_page_has_what_people_set(help_of):
    shown = help_of("serve", "--help")
    assert len(flags(shown)) == 16
    assert "--device auto|cpu|cuda " in shown
    assert "--help all, or one page of model, memory, scheduling, adapters, server, results, security" in shown
    assert "--port" not in help_of("generate", "--help")
    assert "one page of model, memory, scheduling, adapters, logging.\n" in help_of("generate", "--help")


def test_each_setting_is_on_exactly_one_page(help_of):
    pages = {topic: flags(help_of("serve", "--help", topic)) for topic in SECTIONS}
    shown = [flag for page in pages.values() for flag in page]
    settings = settings_of(Settings).values()
    assert sorted(shown) == sorted(item.flag for item in settings if item.name != "model")
    assert "--block-size" in pages["memory"]
    words = " ".join(SECTIONS.values()).split()
    assert len(words) == len(set(words)), "a setting stands in two sections"
    assert set(words) <= set(ALL_FIELDS), "a section names a setting that is gone"
    assert sorted(flags(help_of("serve", "--help", "all"))) == sorted(shown)


def test_choices_are_shown_in_place_of_a_type(help_of):
    text = " ".join(help_of("serve", "--help", "all").split())
    assert not re.search(r"--[\w-]+ (STR|DICT|FLOAT)\b", text)
    for item in settings_of(Settings).values():
        assert "|".join(item.choices) in text or ", ".join(item.choices) in text
    assert "--max-body-bytes SIZE" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["help"], ["--help"]),
        (["help", "serve"], ["serve", "--help"]),
        (["help", "serve", "memory"], ["serve", "--help", "memory"]),
        (["help", "bench", "serve"], ["bench", "serve", "--help"]),
        (["serve", "help"], ["serve", "help"]),
    ],
)
def test_help_is_a_command(words, expected):
    assert help_words(words) == expected


def test_help_takes_a_topic():
    assert help_topic(["serve", "-h", "memory", "x"]) == (["serve", "-h"], "memory")
    assert help_topic(["serve", "--help=all"]) == (["serve", "--help"], "all")
    assert help_topic(["serve", "--help", "--port", "1"]) == (["serve", "--help"], "common")
    assert help_topic(["serve", "demo"]) == (["serve", "demo"], "all")
    with pytest.raises(ConfigError, match="--help swim: no such page; there are all, model, memory"):
        help_topic(["serve", "--help", "swim"])
