"""GuardedHook: the boundary around advice. What an extra's hook raises costs the call its advice, never the engine.

A pacer, speculator, observer, listener or cost model that raises answers like its base class in `core/ports.py`, which
does nothing. What that drops: the step's pace (it gets its whole budget, prompts in queue order), all drafts of the
step (each row decodes one token), one event of a history, one line of a recording, one step of the fit.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

_log = logging.getLogger("splitfuse.engine")
Hook = TypeVar("Hook")


class GuardedHook:
    """Hook with the methods of `default` guarded by it. All else is the hook's own."""

    def __init__(self, hook: Any, default: Any) -> None:
        self._hook, self._default = hook, default
        self.failures: Counter[str] = Counter()
        for name in dir(default):
            if not name.startswith("_") and callable(getattr(default, name)):
                setattr(self, name, self._guard(name))

    def _guard(self, name: str) -> Callable[..., Any]:
        default = getattr(self._default, name)
        full_name = f"{type(self._default).__name__}.{name}"

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return getattr(self._hook, name)(*arguments, **options)
            except Exception:
                self.failures[full_name] += 1
                if self.failures[full_name] == 1:
                    _log.exception("%s failed; steps go on without it (`advice_failures` of /stats)", full_name)
                return default(*arguments, **options)

        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hook, name)


def guarded(hook: Hook, default: Any) -> Hook:
    """Return the hook guarded by a default, whose public methods are the hook's; None without a hook."""
    return hook if hook is None else cast(Hook, GuardedHook(hook, default))


def failures_of(*hooks: object) -> dict[str, int]:
    """Return how often each method of these hooks has failed."""
    return dict(sum((hook.failures for hook in hooks if isinstance(hook, GuardedHook)), Counter[str]()))
