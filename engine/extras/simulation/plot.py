"""Plot: timelines of runs side by side as a picture: tokens per step, blocks, queue, gaps between tokens.

matplotlib is optional and imported on use.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from .timeline import Span, Timeline, read_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_SPANS = 500  # a column cannot show more
_COMPARABLE = 8  # runs whose lengths differ by a larger factor have no common time axis, which would be mostly empty
# Paul Tol's bright scheme: safe for the colour-blind, equal in every picture.
_PREFILL, _DECODE, _BLOCKS, _RUNNING, _WAITING, _GAP = "#4477aa", "#ee6677", "#228833", "#66ccee", "#ccbb44", "#aa3377"

Value = Callable[[Span], float]


def run(paths: Sequence[Path], output: Path) -> int:
    """Entry point of `splitfuse plot`."""
    timelines = [read_timeline(path) for path in paths]
    figure = draw(timelines)
    try:
        figure.savefig(output)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{output} cannot be written: {exc}") from exc
    print(f"{output}: {sum(len(timeline.spans) for timeline in timelines):,} steps of {len(timelines)} run(s)")
    return 0


def draw(timelines: Sequence[Timeline]) -> "Figure":
    """Draw a column per run, on common scales unless times differ too much. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure  # Figure without pyplot: no window, no state
    except ImportError as exc:
        raise ConfigError("plot needs matplotlib: pip install matplotlib") from exc
    figure = Figure(figsize=(3.4 + 4.6 * len(timelines), 9.5), dpi=110, layout="constrained")
    ends = [timeline.end for timeline in timelines]
    is_common = max(ends) <= _COMPARABLE * min(ends)
    grid = figure.subplots(4, len(timelines), squeeze=False, sharex="all" if is_common else "col", sharey="row")
    shows_pool = any(_most_blocks(timeline) > timeline.num_blocks / 3 for timeline in timelines)
    for column, timeline in enumerate(timelines):
        joined_timeline = timeline.joined(_MAX_SPANS)
        axes: list[Axes] = list(grid[:, column])
        axes[0].set_title(f"{timeline.name}\n{len(timeline.spans):,} steps in {timeline.end:,.4g} s", fontsize=11)
        _draw_tokens(axes[0], joined_timeline)
        _draw_blocks(axes[1], joined_timeline, shows_pool=shows_pool)
        _draw_queue(axes[2], joined_timeline)
        _draw_gaps(axes[3], joined_timeline)
        axes[3].set_xlabel("time (s)")
    _style(list(grid))
    for row, label in enumerate(("tokens per step", "KV blocks in use", "requests", "gap between tokens (ms)")):
        grid[row, 0].set_ylabel(label)
        grid[row, -1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return figure


def _style(grid: "Sequence[Sequence[Axes]]") -> None:
    for row in grid:
        for axes in row:
            axes.grid(axis="y", color="0.9")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0)
            if row is grid[-1]:
                axes.set_yscale("log")  # a decode step and the wait for a queue of prompts differ a thousandfold
            else:
                axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")


def _draw_tokens(axes: "Axes", timeline: Timeline) -> None:
    edges, (decode, prefill) = _stairs(timeline, [lambda span: span.decode, lambda span: span.prefill])
    both = [low + high for low, high in zip(decode, prefill, strict=True)]
    axes.stairs(both, edges, baseline=decode, fill=True, color=_PREFILL, label="prefill")
    axes.stairs(decode, edges, fill=True, color=_DECODE, label="decode")


def _most_blocks(timeline: Timeline) -> float:
    return max(span.used_blocks for span in timeline.spans)


def _draw_blocks(axes: "Axes", timeline: Timeline, *, shows_pool: bool) -> None:
    edges, (used,) = _stairs(timeline, [lambda span: span.used_blocks])
    axes.stairs(used, edges, fill=True, color=_BLOCKS, alpha=0.85, label="in use")
    if timeline.num_blocks and shows_pool:  # a much larger pool would flatten the curves
        axes.axhline(timeline.num_blocks, color="0.4", linestyle="--", linewidth=1, label="pool")


def _draw_queue(axes: "Axes", timeline: Timeline) -> None:
    edges, (running, waiting) = _stairs(timeline, [lambda span: span.running, lambda span: span.waiting])
    both = [low + high for low, high in zip(running, waiting, strict=True)]
    axes.stairs(both, edges, baseline=running, fill=True, color=_WAITING, label="waiting")
    axes.stairs(running, edges, fill=True, color=_RUNNING, label="running")


def _draw_gaps(axes: "Axes", timeline: Timeline) -> None:
    spans = [span for span in timeline.spans if span.gap is not None]
    times = [(span.start + span.end) / 2 for span in spans]
    longest = [1e3 * (span.gap or 0.0) for span in spans]
    usual = [1e3 * (span.usual_gap or 0.0) for span in spans]
    if usual != longest:  # a point shows several steps
        axes.vlines(times, usual, longest, color=_GAP, alpha=0.3, linewidth=1, label="median to longest")
    axes.plot(times, longest, ".", color=_GAP, markersize=4, label="longest")


def _stairs(timeline: Timeline, values: Sequence[Value]) -> tuple[list[float], list[list[float]]]:
    """Return edges and, for each value, the heights between them; 0 between steps."""
    edges: list[float] = [timeline.spans[0].start]
    heights: list[list[float]] = [[] for _ in values]
    for span in timeline.spans:
        if span.start > edges[-1]:
            edges.append(span.start)
            for height in heights:
                height.append(0.0)
        edges.append(max(span.end, edges[-1]))
        for height, value in zip(heights, values, strict=True):
            height.append(value(span))
    return edges, heights
