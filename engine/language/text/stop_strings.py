"""StopStringMatcher: finds stop strings in a text that arrives in parts."""

from collections.abc import Sequence


class StopStringMatcher:
    """Matcher that passes text on up to a stop string, and holds back an end that may be the beginning of one."""

    def __init__(self, stop: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself is passed on too."""
        self._stop = stop
        self._include = include
        self._held_text = ""
        self.matched: str | None = None

    def push(self, text: str, *, last: bool, may_stop: bool) -> str:
        """Return the text that is certain now; set `matched` if a stop string ends it. `last`: hold nothing back."""
        text, self._held_text = self._held_text + text, ""
        if not self._stop or not may_stop:
            return text
        found = [(position, stop) for stop in self._stop if (position := text.find(stop)) >= 0]
        if found:
            position, self.matched = min(found)
            return text[: position + len(self.matched) * self._include]
        end = len(text) if last else len(text) - max(overlap(text, stop) for stop in self._stop)
        self._held_text = text[end:]
        return text[:end]


def overlap(text: str, tag: str) -> int:
    """Return the length of the longest end of the text that is a beginning of the tag, but not all of the tag."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
