"""Bar on a terminal for a call with many prompts: outputs that have ended, and tokens per second."""

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..core.outputs import OutputDelta
from .request_output import RequestOutput

OnDelta = Callable[[OutputDelta], None]


class Joinable(Protocol):
    """Stream of deltas that can be run to its end."""

    def joined(self, on_delta: OnDelta | None = None) -> list[RequestOutput]:
        """Run to the end, and call with each delta."""


def with_bar(stream: Joinable, *, num_outputs: int, on_delta: OnDelta | None) -> list[RequestOutput]:
    """Run a stream to its end beside a bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begin, num_tokens = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("prompts", total=num_outputs)

        def count(delta: OutputDelta) -> None:
            nonlocal num_tokens
            num_tokens += len(delta.token_ids)
            rate = num_tokens / max(time.monotonic() - begin, 1e-9)
            progress.update(task, advance=delta.finish_reason is not None, description=f"{rate:,.0f} tokens/s")
            if on_delta is not None:
                on_delta(delta)

        return stream.joined(count)
