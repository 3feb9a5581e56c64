"""Bug planted into the shipped code, one at a time: a wrong method, which may call the right one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
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
) -> Callable[[Method], Method]:
    """Register a wrong method in `bugs` under its name. The right one is its first argument, before self."""

    def keep(wrong: Method) -> Method:
        @wraps(wrong)
        def make(right: Any) -> Any:
            if isinstance(right, property):
                return property(lambda self: wrong(right, self))
            return lambda self, *args, **more: wrong(right, self, *args, **more)

        bugs[wrong.__name__] = Bug(owner, name, make, where, shows_in_tokens)
        return wrong

    return keep
