"""AnswerView: shows an answer as it arrives, plain, or as Markdown with colour on a terminal."""

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

_FENCES = ("```", "~~~")


class AnswerView(Protocol):
    """View of one answer, as a `with` block."""

    def __enter__(self) -> "AnswerView": ...

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        """Show the rest of the text, and end the line."""

    def show(self, text: str) -> None:
        """Show the next part."""


def new_view(*, is_plain: bool) -> AnswerView:
    """Return a Markdown view on a terminal that can, else a plain one."""
    if is_plain or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "dumb"):
        return PlainView()
    from rich.console import Console

    return MarkdownView(Console(highlight=False))


class PlainView:
    """View that prints the text as it is."""

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is None or kind is KeyboardInterrupt:  # an error is the only line
            print(flush=True)

    def show(self, text: str) -> None:
        """Print the next part."""
        print(text, end="", flush=True)


class MarkdownView:
    """View that prints each whole block of Markdown once, and below it the unfinished block as it is."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live
        from rich.text import Text

        self._console = console
        self._text: type[Any] = Text
        self._pending = ""
        self._live: Any = Live(console=console, transient=True, refresh_per_second=12)

    def __enter__(self) -> "MarkdownView":
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._print(self._pending, left="")
        self._live.stop()

    def show(self, text: str) -> None:
        """Print the blocks that this part completes."""
        whole, self._pending = split_blocks(self._pending + text)
        self._print(whole, left=self._pending)
        self._live.update(self._text(self._pending))

    def _print(self, text: str, *, left: str) -> None:
        """Print a whole block above the unfinished text that is left."""
        if text.strip():
            from rich.markdown import Markdown

            self._live.update(self._text(left), refresh=True)  # else the block would be drawn a second time below
            self._console.print(Markdown(text, hyperlinks=False), end="\n\n")


def split_blocks(text: str) -> tuple[str, str]:
    """Split Markdown behind its last whole block: at an empty line outside a fence of code."""
    position = end = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        position += len(line)
        words = line.strip()
        if words.startswith(_FENCES) and not fence:
            fence = words[:3]
        elif fence and words == fence:
            fence = ""
        elif not fence and not words and line.endswith("\n"):
            end = position
    return text[:end], text[end:]
