"""Setting: declaration of everything about a setting, at its dataclass field.

    max_num_seqs: int = setting(64, at_least=1, decides=True, help="most sequences in one step")

The checks, the flag, the environment variable, the key of the config file and their help follow from the declaration.
"""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ..errors import ConfigError

ENV_PREFIX = "SPLITFUSE_"
KIND_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a string or a list of strings",
    dict: "an object",
}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Declaration of a field. None is allowed if it is the default; numbers are finite and within the bounds."""

    name: str = ""
    kind: type = str  # int for `int | None`, tuple for `tuple[str, ...]`
    default: Any = None
    help: str = ""
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # that a number's setting takes instead of a number
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    word_key: str = ""  # for objects: key of a text that is no JSON, so that `ngram` is {"model": "ngram"}
    by_tenant: bool = False  # for objects: keys are tenants
    decides: bool = False  # True if a scheduler's decisions depend on the setting, so a recording holds it

    @property
    def flag(self) -> str:
        """Flag of the command line: `--max-num-seqs`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable: `SPLITFUSE_MAX_NUM_SEQS`."""
        return ENV_PREFIX + self.name.upper()

    def fault(self, value: Any) -> str | None:
        """Say what is wrong with the value; None if nothing is. Strings and objects are checked where they are read."""
        if (value is None and self.default is None) or (isinstance(value, str) and value in self.words):
            return None
        if self.choices and value not in self.choices:
            return f"{self.name} {value!r} is not one of {', '.join(self.choices)}"
        if self.kind not in (bool, int, float) or self._is_number_within_bounds(value):
            return None
        bounds = [f" {relation} {bound}" for relation, _, bound in self._bounds()]
        hint = f" ({self.help})" if self.help else ""
        kind = " or ".join([*self.words, KIND_NAMES[self.kind]])
        return f"{self.name} must be {kind}{' and'.join(bounds)}, not {value!r}{hint}"

    def _is_number_within_bounds(self, value: Any) -> bool:
        is_kind = type(value) is self.kind or (self.kind is float and type(value) is int)
        return (
            is_kind and -math.inf < value < math.inf and all(holds(value, bound) for _, holds, bound in self._bounds())
        )

    def _bounds(self) -> list[tuple[str, Any, Any]]:
        bounds = (("of at least", operator.ge, self.at_least), ("above", operator.gt, self.above))
        return [bound for bound in (*bounds, ("at most", operator.le, self.at_most)) if bound[2] is not None]


def setting(default: _T, *, repr: bool = True, **declared: Any) -> _T:
    """Declare a dataclass field; `declared` are Setting's fields. `repr=False` keeps the value out of logs."""
    return dataclasses.field(default=default, repr=repr, metadata={"setting": Setting(default=default, **declared)})


@cache
def settings_of(config: type) -> Mapping[str, Setting]:
    """Return the settings of a config class by name, in the order of its fields."""
    hints = typing.get_type_hints(config)
    return {
        field.name: dataclasses.replace(field.metadata["setting"], name=field.name, kind=_kind(hints[field.name]))
        for field in dataclasses.fields(config)
    }


def check(config: Any) -> None:
    """Raise ConfigError for the first field with a value that its declaration does not allow."""
    for name, declared in settings_of(config.__class__).items():
        if fault := declared.fault(getattr(config, name)):
            raise ConfigError(fault)


def _kind(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
        (hint,) = parts if len(parts) == 1 else (part for part in parts if part is not str)  # str: `words`
    kind: type = typing.get_origin(hint) or hint
    return kind
