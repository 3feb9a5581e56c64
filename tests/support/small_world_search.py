"""Search: visits every state of a small world, nearest first, so that a failure's path is the shortest one."""

import marshal
import time
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

MOST_WAIT = 60  # undisturbed actions until all requests have ended
NEVER = f"after this not all requests end in {MOST_WAIT} actions"


@dataclass(frozen=True)
class Visited:
    """Figures of a search. `num_open`: states whose successors were not visited yet; none: the world is whole."""

    num_states: int
    num_edges: int
    depth: int
    num_open: int
    longest_wait: int  # undisturbed actions from a state until all requests have ended
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.num_states} states, {self.num_edges} edges, depth {self.depth}, frontier {self.num_open}, "
            f"longest wait {self.longest_wait}, {self.seconds:.1f} s"
        )


class Broken(AssertionError):
    """Rule that does not hold. `path`: the shortest way there. The message ends with a test that shows it again."""

    def __init__(self, where: str, path: list[str], fault: str, *, at_the_end: bool = False) -> None:
        self.path, self.fault = path, fault
        lines = "".join(f'            "{action}",\n' for action in path)
        more = ", to_the_end=True" if at_the_end else ""
        super().__init__(f"{fault}\n\n    def test_path() -> None:\n        follow({where}, [\n{lines}        ]{more})")


def follow(settings: Any, path: Iterable[str], *, to_the_end: bool = False) -> Any:
    """Let the actions of a path happen in a new world, and check it after each; then perhaps the rest of the work."""
    world, _ = settings.open()
    for action in path:
        assert action in world.actions(), f"{action} cannot happen now, only {world.actions()}"
        world.act(action)
        world.check()
    for _ in range(MOST_WAIT if to_the_end else 0):
        if world.has_work:
            world.act(world.actions()[0])
    assert not (to_the_end and world.has_work), NEVER
    return world


class Search:
    """Breadth-first search of one world, of the scheduler or of the journal."""

    def __init__(self, settings: Any, name: str = "") -> None:
        self._settings, self._where = settings, f"{settings.table}[{name!r}]" if name else repr(settings)
        self._world, self._memory = settings.open()
        self._numbers: dict[bytes, int] = {}  # by digest of a state's key
        self._parents = array("l")
        self._actions = array("H")  # that led to a state from its parent
        self._depths = array("H")
        self._next = array("l")  # number of the state after the undisturbed action; -1: all has ended, -2: not known
        self._words: dict[str, int] = {}
        self._frontier: deque[tuple[int, Any]] = deque()
        self._num_edges = 0

    def run(self, *, seconds: float = float("inf"), most_states: int = 2**62) -> Visited:
        """Visit states until all were, or until time or number is over. Raises Broken."""
        begin = time.monotonic()
        self._visit(-1, "")
        while self._frontier and len(self._next) < most_states and time.monotonic() - begin < seconds:
            number, snapshot = self._frontier.popleft()
            self._expand(number, snapshot)
        longest = self._longest_wait()
        figures = len(self._next), self._num_edges, self._depths[-1], len(self._frontier)
        return Visited(*figures, longest, time.monotonic() - begin)

    def _expand(self, number: int, snapshot: Any) -> None:
        world, restore = self._world, self._memory.restore
        restore(snapshot)
        actions = world.actions()
        if not world.has_work:
            self._next[number] = -1
        for place, action in enumerate(actions):
            if place:
                restore(snapshot)
            try:
                world.act(action)
                world.check()
            except Exception as exc:
                raise self._broken([*self._path(number), action], exc) from exc
            after = self._visit(number, action)
            self._num_edges += 1
            if not place and self._next[number] == -2:
                self._next[number] = after

    def _visit(self, parent: int, action: str) -> int:
        """Return the number of the world's state; a new state joins the frontier."""
        digest = blake2b(marshal.dumps(self._memory.key(), 2), digest_size=12).digest()
        number = self._numbers.setdefault(digest, len(self._numbers))
        if number == len(self._next):
            self._parents.append(parent)
            self._actions.append(self._words.setdefault(action, len(self._words)))
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            self._next.append(-2)
            self._frontier.append((number, self._memory.save()))
        return number

    def _path(self, number: int) -> list[str]:
        words, path = list(self._words), list[str]()
        while number > 0:
            path.append(words[self._actions[number]])
            number = self._parents[number]
        return path[::-1]

    def _broken(self, path: list[str], exc: Exception) -> Broken:
        """Return the failure, which a new world must show too: else a copy has forgotten something."""
        fault = f"{type(exc).__name__}: {exc}"
        try:
            follow(self._settings, path)
        except Exception as again:
            fault = f"{type(again).__name__}: {again}"
        else:
            fault = f"only copies show it, so they forget something: {fault}"
        return Broken(self._where, path, fault)

    def _longest_wait(self) -> int:
        """Return the most undisturbed actions from a state to the end. Raises Broken if there is no end."""
        waits = array("l", [-1]) * len(self._next)
        for first in range(len(self._next)):
            chain, number = list[int](), first
            while number >= 0 and waits[number] == -1:
                waits[number] = MOST_WAIT  # if the chain comes back here
                chain.append(number)
                number = self._next[number]
            wait = waits[number] if number >= 0 else 0
            for number in reversed(chain):
                wait += self._next[number] != -1
                waits[number] = wait
            if wait > MOST_WAIT:
                raise Broken(self._where, self._path(first), NEVER, at_the_end=True)
        return max(waits)
