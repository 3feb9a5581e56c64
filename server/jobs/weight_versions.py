"""WeightVersions: versions of the weights behind a job's tokens."""

from collections.abc import Callable

from ...engine.core.outputs import OutputDelta

Sink = Callable[[OutputDelta], None]


class WeightVersions:
    """Versions that sampled a job's last and first token. `current` returns the version that samples now."""

    def __init__(self, current: Callable[[], int] | None = None) -> None:
        self._current = current  # None if nobody knows it
        self._last: int | None = None
        self._first: int | None = None

    def noting(self, sink: Sink) -> Sink:
        """Return the engine's sink, which notes the version of each delta before a store delays it."""
        current = self._current
        if current is None:
            return sink

        def noted(delta: OutputDelta) -> None:
            if delta.token_ids:
                self.note(weights_version=current())
            sink(delta)

        return noted

    def note(self, *, weights_version: int, first_weights_version: int | None = None) -> None:
        """Note the version behind the last tokens, and once that behind the first."""
        self._last = weights_version
        if self._first is None:
            self._first = weights_version if first_weights_version is None else first_weights_version

    def to_dict(self) -> dict[str, int]:
        """Return the fields of an answer: none if no version is known, one if all tokens have the same."""
        if self._last is None or self._first is None:
            return {}
        both = {"weights_version": self._last, "first_weights_version": self._first}
        return both if self._first != self._last else {"weights_version": self._last}
