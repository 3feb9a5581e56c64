"""Views of an answer: plain text as it is; Markdown once per block, whatever the parts it arrives in."""

import io
import random

import pytest
from rich.console import Console

from splitfuse.server.commands.terminal.answer_view import MarkdownView, PlainView, new_view, split_blocks

TEXT = "# Title\n\nSome **bold** words.\n\n```python\nx = 1\n\ny = 2\n```\n\n- one\n- two\n\nThe end"


def rendered(parts):
    output = io.StringIO()
    with MarkdownView(Console(file=output, force_terminal=True, width=60, color_system=None)) as view:
        for part in parts:
            view.show(part)
    return output.getvalue()


def test_blocks_end_at_an_empty_line_outside_code():
    assert split_blocks("a\nb") == ("", "a\nb")
    assert split_blocks("a\n\nb") == ("a\n\n", "b")
    assert split_blocks("```\na\n\nb") == ("", "```\na\n\nb")
    assert split_blocks("```\na\n\nb\n```\n\nc") == ("```\na\n\nb\n```\n\n", "c")


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_do_not_change_what_is_left_on_the_screen(seed):
    cuts = sorted(random.Random(seed).sample(range(1, len(TEXT)), 9))
    parts = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    assert "".join(parts) == TEXT
    for word in ("Title", "bold", "x = 1", "y = 2", "• one", "The end"):
        assert word in rendered(parts)
    assert "**" not in rendered([TEXT])


def test_a_terminal_gets_markdown_and_a_pipe_does_not(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(new_view(is_plain=False), PlainView)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert isinstance(new_view(is_plain=False), MarkdownView)
    assert isinstance(new_view(is_plain=True), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(new_view(is_plain=False), PlainView)
