"""Profiles: every bundle is one that the engine takes."""

import re
from pathlib import Path

import pytest

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.config.profiles import CPU, GPU, PROFILES, profile_values


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_profile_is_valid_on_each_device(name: str, device: str) -> None:
    values = profile_values(name, device=device)
    assert values
    config = EngineConfig(device=device, **values)
    assert {setting: getattr(config, setting) for setting in values} == values


@pytest.mark.parametrize(("driver", "device"), [(None, CPU), ("/usr/bin/nvidia-smi", GPU)])
def test_auto_is_a_gpu_where_a_driver_is(driver: str | None, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: driver)
    for name in PROFILES:
        assert profile_values(name, device="auto") == PROFILES[name][device]
        assert profile_values(name, device="cpu") == PROFILES[name][CPU]


def test_the_page_of_commands_says_what_each_profile_sets() -> None:
    page = (Path(__file__).parents[3] / "server/docs/commands.md").read_text()
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| (`\w+` .*?) \|", page.partition("## Choose a profile")[2], re.MULTILINE)
    named: dict[str, dict[str, str]] = {}
    for profile, settings in rows:
        if profile:
            values = named.setdefault(profile, {})
        values |= dict(re.findall(r"`(\w+)` ([\w.]+)", settings))
    assert named == {
        name: {key: str(value) for key, value in devices[CPU].items()} for name, devices in PROFILES.items()
    }
