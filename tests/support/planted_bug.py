"""Bug: what is planted into the shipped code, one at a time: a function from the right method to a wrong one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from world_settings import WorldSettings

Method = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    """`make` takes the method `name` of `owner` and returns its replacement.

    Worlds whose settings are not `where` it can show need not be run. `shows_in_tokens`: it makes requests read wrong
    blocks, so they get wrong tokens.
    """

    owner: type
    name: str
    make: Callable[[Method], Method]
    where: Callable[[WorldSettings], bool]
    shows_in_tokens: bool


Bugs = dict[str, Bug]


def plant(
    bugs: Bugs,
    owner: type,
    name: str,
    *,
    where: Callable[[WorldSettings], bool] = lambda settings: True,
    shows_in_tokens: bool = False,
) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Put a bug among `bugs` under its function's name."""

    def keep(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
        bugs[make.__name__] = Bug(owner, name, make, where, shows_in_tokens)
        return make

    return keep
