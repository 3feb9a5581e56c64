"""The screen of `splitfuse top` says what the events say, whatever characters are in them."""

from typing import Any

from splitfuse.server.commands.live_figures import LiveFigures, bars, printable

HELLO = {"model": "m", "batching_policy": "splitfuse", "budget": 512, "num_blocks": 64}
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\r\n\x9b31m"


def shape(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "arrival": 1.0, "prompt": 6, "max": 9, "id": f"id-{number}", **more}


def figures_of_two() -> LiveFigures:
    figures = LiveFigures(HELLO)
    figures.take("requests", [shape(0), shape(1)])
    figures.take(
        "steps",
        [
            {"step": 0, "start": 1.0, "end": 1.5, "chunks": [[0, 0, 6]], "running": 1, "waiting": 1, "blocks": [1, 0]},
            {
                "step": 1,
                "start": 1.5,
                "end": 2.0,
                "chunks": [[1, 0, 4]],
                "decodes": [0],
                "running": 2,
                "blocks": [2, 0],
            },
        ],
    )
    return figures


def test_the_screen() -> None:
    screen = "\n".join(figures_of_two().screen(width=100, height=40))
    assert "m  policy splitfuse  budget 512 tokens" in screen
    assert "running     2   waiting     0" in screen
    assert "blocks 2/64" in screen
    assert "first token 500 ms (P99 500)   gap 500 ms (P99 500)" in screen
    assert "id-0                 6/6       2  decode" in screen
    assert "id-1                 4/6       0  prefill" in screen


def test_the_same_decodes_as_in_the_step_before() -> None:
    figures = figures_of_two()
    steps = [{"step": 2 + i, "start": 2.0 + i, "end": 3.0 + i, "decodes": d} for i, d in enumerate(([0, 1], True))]
    figures.take("steps", steps)
    screen = "\n".join(figures.screen(width=100, height=40))
    assert "id-0                 6/6       4  decode" in screen
    assert "id-1                 4/6       2  decode" in screen


def test_what_has_ended_is_gone_and_what_was_preempted_is_told() -> None:
    figures = figures_of_two()
    figures.take("ended", [[0, "stop", 2.0]])
    figures.take("steps", [{"step": 2, "start": 2.0, "end": 2.1, "preempted": [[1, "swap", None, None]]}])
    screen = "\n".join(figures.screen(width=100, height=40))
    assert "id-0" not in screen
    assert "preempted, swap" in screen


def test_unknown_events_and_requests_are_ignored() -> None:
    figures = LiveFigures(HELLO)
    figures.take("later", {"x": 1})
    figures.take("steps", [{"step": 0, "start": 0.0, "end": 1.0, "chunks": [[7, 0, 4]], "decodes": [8]}])
    figures.take("ended", [[9, "stop", 1.0]])
    assert figures.screen(width=80, height=20)


def test_hostile_text_moves_no_cursor() -> None:
    figures = LiveFigures({**HELLO, "model": HOSTILE * 100})
    figures.take("requests", [shape(0, id=HOSTILE)])
    for line in figures.screen(width=60, height=20):
        assert line.isprintable()
        assert len(line) <= 60
    assert printable("plain äöü 日本") == "plain äöü 日本"
    assert printable("x" * 1_000_000 + "\x1b") == "x" * 1_000_000 + "�"


def test_a_small_terminal() -> None:
    for width, height in ((1, 1), (10, 3), (0, 0)):
        lines = figures_of_two().screen(width=width, height=height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)


def test_bars() -> None:
    assert bars([0, 1, 8], 10) == " ▁█"
    assert bars([1, 2, 3, 4], 2) == "▆█"
    assert bars([], 5) == bars([1], 0) == ""
