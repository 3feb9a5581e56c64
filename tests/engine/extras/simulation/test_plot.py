"""Timelines from recordings, and their picture."""

import io
import sys
from pathlib import Path

import pytest
from scheduler_bench import request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.extras.simulation.recording import Recorder
from splitfuse.engine.extras.simulation.timeline import Span, Timeline, read_timeline
from splitfuse.server.cli import main

pytestmark = pytest.mark.slow  # matplotlib


@pytest.fixture
def simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Path]:
    paths = []
    for policy in ("splitfuse", "prefill_first"):
        paths.append(tmp_path / f"{policy}.jsonl")
        argv = ["--clients", "6", "--limit", "30", "--batching-policy", policy, "--record", str(paths[-1])]
        assert main(["simulate", *argv]) == 0
    capsys.readouterr()
    return paths


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    stream = io.StringIO()
    config = ResolvedConfig.of(
        EngineConfig(block_size=4, max_num_batched_tokens=10, enable_prefix_caching=False), device="cpu"
    )
    cache = CacheSpec(50, 4)
    recorder = Recorder(stream, config, cache)
    scheduler = Scheduler(config, BlockManager(cache, prefix_caching=False), listener=recorder)
    for num_prompt in (12, 4):
        scheduler.add(request(num_prompt, 3))
    now = 100.0
    while (batch := scheduler.schedule(now)) is not None:
        outputs = [RowOutput((0,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows]
        scheduler.update(batch, outputs, now + 0.5)
        now += 2.0
    path = tmp_path / "recording.jsonl"
    path.write_text(stream.getvalue())
    return path


def test_a_simulations_recording_has_times_and_gaps(simulated: list[Path]) -> None:
    timeline = read_timeline(simulated[0])
    assert timeline.name == "splitfuse"
    assert all(a.end <= b.start for a, b in zip(timeline.spans, timeline.spans[1:], strict=False))
    assert timeline.spans[0].gap is None
    assert any(span.gap for span in timeline.spans)


def test_a_recording(recording: Path) -> None:
    timeline = read_timeline(recording)
    shown = [(s.start, s.end, s.prefill, s.decode, s.running, s.waiting, s.used_blocks, s.gap) for s in timeline.spans]
    assert shown == [
        (0.0, 0.5, 10, 0, 1, 1, 3, None),
        (2.0, 2.5, 6, 0, 2, 0, 4, None),  # both requests get their first token
        (4.0, 4.5, 0, 2, 2, 0, 6, 2.0),
        (6.0, 6.5, 0, 2, 2, 0, 6, 2.0),
    ]


def test_joining_weighs_by_time_and_keeps_the_longest_gap() -> None:
    spans = [
        Span(0.0, 1.0, prefill=100, used_blocks=10, gap=0.5, usual_gap=0.5),
        Span(1.0, 4.0, prefill=20, used_blocks=30, gap=3.0, usual_gap=3.0),
        Span(4.0, 4.0, decode=1),
        Span(9.0, 10.0, prefill=7),
    ]
    joined = Timeline("x", spans).joined(2).spans
    assert [(s.start, s.end) for s in joined] == [(0.0, 5.0), (5.0, 10.0)]
    assert joined[0].prefill == pytest.approx((100 + 3 * 20) / 4, rel=1e-3)
    assert joined[0].used_blocks == pytest.approx(25, rel=1e-3)
    assert (joined[0].gap, joined[0].usual_gap) == (3.0, 1.75)
    assert (joined[1].prefill, joined[1].gap) == (7, None)
    # A step longer than the width is in all the spans that it covers.
    assert len(Timeline("x", [Span(0.0, 9.0, prefill=5), Span(9.0, 9.1), Span(9.1, 10.0)]).joined(2).spans) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no steps"),
        ("nothing of ours\n", "line 1 is not JSON"),
        ('{"splitfuse": "recording", "num_blocks": 3}\n', "holds no steps"),
    ],
)
def test_a_file_without_steps_is_refused(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.log"
    path.write_text(text)
    assert main(["plot", str(path)]) == 2
    assert why in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "/none.log"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(recording)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_all_kinds_side_by_side(simulated: list[Path], recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    output = recording.with_suffix(".png")
    assert main(["plot", *map(str, [*simulated, recording]), "-o", str(output)]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert "3 run(s)" in capsys.readouterr().out


def test_what_is_drawn(simulated: list[Path]) -> None:
    pytest.importorskip("matplotlib")
    from splitfuse.engine.extras.simulation.plot import draw

    figure = draw([read_timeline(path) for path in simulated])
    axes = figure.get_axes()
    assert len(axes) == 4 * 2
    assert [panel.get_ylabel() for panel in axes if panel.get_ylabel()] == [
        "tokens per step",
        "KV blocks in use",
        "requests",
        "gap between tokens (ms)",
    ]
    assert axes[0].get_title().startswith("splitfuse\n")
    assert axes[0].get_ylim() == axes[1].get_ylim(), "policies are compared on the same scale"


def test_an_output_that_cannot_be_written(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for output in ("/no/such/folder/a.png", "a.nonsense"):
        assert main(["plot", str(recording), "-o", output]) == 2
        assert "cannot be written" in capsys.readouterr().err
