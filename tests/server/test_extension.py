"""Extensions: which are used, what they own, and what is said of one that cannot be had."""

import errno
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from splitfuse.engine import extension as engine_extension
from splitfuse.engine.config.setting import setting
from splitfuse.engine.errors import ConfigError, UnavailableError
from splitfuse.server import extension
from splitfuse.server.extension import Extension, Extensions, Part, declared
from splitfuse.server.server_settings import ServerSettings
from splitfuse.server.settings import Settings


@dataclass(frozen=True, kw_only=True)
class OddSettings(ServerSettings):
    odd: bool = setting(False, help="")


def declare(monkeypatch: pytest.MonkeyPatch, *extensions: Extension) -> None:
    monkeypatch.setattr(extension, "declared", lambda: extensions)


def test_every_folder_of_extras_declares_itself() -> None:
    assert {found.name for found in declared()} >= {"anthropic", "batches", "chat", "durable", "openai", "page"}


def test_each_setting_is_in_one_section() -> None:
    """A name in two sections would be one field with two meanings."""
    sections = [found.settings for found in declared() if found.settings is not None]
    names = [name for section in sections for name in vars(section)["__annotations__"]]
    assert len(names) == len(set(names))
    assert all(issubclass(Settings, section) for section in sections)


def test_one_that_a_setting_asks_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Extension(package="a.odd", requires=("engine/extras/none",), settings=OddSettings, is_used=lambda s: s.odd)
    declare(monkeypatch, odd)
    assert Extensions(OddSettings()).used == []
    with pytest.raises(ConfigError, match="odd, which needs engine/extras/none; this installation lacks it"):
        Extensions(OddSettings(odd=True))


def test_one_that_is_used_by_default_is_left_out_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    declare(monkeypatch, Extension(package="a.plain", requires=("server/extras/none",)))
    with caplog.at_level(logging.WARNING):
        assert Extensions(ServerSettings()).used == []
    assert "lacks server/extras/none: plain" in caplog.text


def test_one_needs_what_its_required_ones_need_and_one_cause_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    low = Extension(package="splitfuse.server.extras.low", requires=("engine/extras/absent",))
    high = Extension(package="splitfuse.server.extras.high", requires=("server/extras/low",), paths=("/high",))
    monkeypatch.setattr(extension, "_is_there", lambda folder: folder != "engine/extras/absent")
    declare(monkeypatch, high, low)
    with caplog.at_level(logging.WARNING):
        extensions = [Extensions(ServerSettings()) for _ in range(2)]
    assert [one.used for one in extensions] == [[], []]
    assert [record.getMessage() for record in caplog.records] == [
        "not served, because this installation lacks engine/extras/absent: high, low"
    ]
    assert extensions[0].lack_at("/high/7") == "high needs engine/extras/absent, which this installation lacks"
    assert extensions[0].lack_at("/low") is None


@pytest.mark.parametrize(
    ("path", "is_owned"),
    [
        ("/v1/things", True),
        ("/v1/things/7", True),
        ("/v1/thingsome", False),
        ("/v1", False),
        ("/result/abc/explain", True),
        ("/result/abc", False),
    ],
)
def test_it_owns_whole_segments_of_paths(path: str, is_owned: bool) -> None:
    assert Extension(package="a.b", paths=("/v1/things", "/result/*/explain")).owns(path) is is_owned


def test_a_part_is_made_once() -> None:
    made: list[Any] = []

    class Counted(Part):
        def __init__(self, service: Any) -> None:
            super().__init__(service)
            made.append(self)

    extensions = Extensions(Settings())
    assert extensions.part(Counted, "service") is extensions.part(Counted, "service")
    assert len(made) == 1
    assert made[0] in extensions.parts


def test_a_process_without_descriptors_can_load_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(found for found in declared() if found.name == "page")

    def no_file(name: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(engine_extension, "import_module", no_file)
        with pytest.raises(UnavailableError, match="try again"):
            found.load("assets:index")
    assert callable(found.load("assets:index"))
