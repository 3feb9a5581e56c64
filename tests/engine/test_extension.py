"""Extras by name: one that is missing is named, be it asked for or imported by another one."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extension import importing_for, load_extra


def test_a_missing_extra_is_named_with_the_setting_that_needs_it() -> None:
    with pytest.raises(ConfigError, match="--absent needs engine/extras/absent, which this installation does not have"):
        load_extra("absent.thing", needed_for="--absent")


def test_an_import_of_a_missing_extra_is_named_too() -> None:
    missing = ModuleNotFoundError("No module named …", name="splitfuse.engine.extras.absent.thing")
    with pytest.raises(ConfigError, match="--present needs engine/extras/absent"), importing_for("--present"):
        raise missing


def test_another_missing_module_is_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError), importing_for("--present"):
        raise ModuleNotFoundError("No module named 'other'", name="other")
