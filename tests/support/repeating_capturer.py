"""RepeatingCapturer: does the work again where CUDA would replay it."""

from collections.abc import Callable


class RepeatingCapturer:
    """Does the work when it captures, and again when it replays."""

    num_replayed = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()

        def replay() -> None:
            self.num_replayed += 1
            work()

        return replay
