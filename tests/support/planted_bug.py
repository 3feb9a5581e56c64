"""Bug planted into the shipped code, one at a time: a function from the right method to a wrong one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from world_settings import WorldSettings

Method = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    """Bug of one method: `make` takes the method `name` of `owner` and returns its replacement.

    Only worlds whose settings satisfy `where` can show the bug. `shows_in_tokens`: the bug makes requests read wrong
    blocks, so tokens are wrong.
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
    """Register a bug in `bugs` under its function's name."""

    def keep(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
        bugs[make.__name__] = Bug(owner, name, make, where, shows_in_tokens)
        return make

    return keep
