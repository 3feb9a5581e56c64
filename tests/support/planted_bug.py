"""Bug planted into the shipped code, one at a time: a wrong method, which may call the right one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest
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


def planted_by_name(bugs: Bugs) -> Any:
    """Make a fixture: the bug that its parameter names, in place of the right code. Fails if it was never called."""

    @pytest.fixture
    def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bug]:
        bug, num_calls = bugs[request.param], 0
        wrong = bug.make(getattr(bug.owner, bug.name))

        def counted(*args: Any, **more: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            return wrong(*args, **more)

        monkeypatch.setattr(bug.owner, bug.name, counted)
        yield bug
        assert num_calls > 0

    return planted


def run_until_caught(bug: Bug, worlds: Iterable[Any], *, num_steps: int) -> str:
    """Run worlds until one breaks a rule, and return what it says. Fails if none does."""
    for count, world in enumerate(worlds, 1):
        try:
            if bug.where(world.settings):
                world.run(num_steps)
        except AssertionError as broken:
            if not isinstance(broken.__cause__, AssertionError):
                pytest.fail(f"a blunder of the wrong code itself: {broken}")
            print(f"{count} worlds; {str(broken).splitlines()[0]}")
            return str(broken)
    pytest.fail(f"{bug.owner.__name__}.{bug.name} is wrong, and no world sees it")
