"""Extras by name: one that is missing is named, be it asked for or imported by another one."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extension import declared, importing_for, load_extra
from splitfuse.engine.extras import NAMES


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


def test_the_table_of_names_is_what_the_folders_declare() -> None:
    names = {
        extension.name: {*getattr(extension.settings, "__annotations__", {}), *extension.calls, *extension.keywords}
        for extension in declared()
        if extension.package.startswith("splitfuse.engine.extras.")
    }
    assert {name: found for name, found in names.items() if found} == {key: set(NAMES[key].split()) for key in NAMES}
