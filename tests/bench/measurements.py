"""Pictures of server/docs/measurements.md, out of the figures that the benchmarks have saved.

`python tests/bench/measurements.py [FOLDER] [--pictures FOLDER]` draws what is in tests/bench/figures: clients.json and
gaps.json (peers_http.py --save-result), goodput.json (of 2026-11-26) and goodput_simulated.json (goodput.py). `where`
names the machine and the day, and stands below the picture. Pictures have no background, and their grey can be read on
white and on black.
"""

import argparse
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
GREY = "#7d7d7d"
# Paul Tol's bright scheme: safe for the colour-blind, and to be seen on white and on black.
COLOURS = {
    "splitfuse": "#4477aa",
    "deadlines": "#4477aa",
    "llama-server": "#ee6677",
    "vllm": "#228833",
    "queue order": "#ccbb44",
}
NAMES = {"deadlines": "splitfuse with deadlines", "queue order": "splitfuse in queue order", "vllm": "vLLM"}
TRACES = {"conv": "conversations", "code": "code"}
STYLE = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "splitfuse",
    "path.simplify": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
}
Data = dict[str, Any]


def new_figure(height: float, count: int = 1, *, title: str, where: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes beside each other; what was measured stands above, where and when below."""
    figure = Figure(figsize=(7.6, height), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(textwrap.fill(where, 120), fontsize=7)
    for one in axes:
        one.patch.set_visible(False)
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.25)
    return figure, axes


def draw_line(axes: Axes, name: str, points: list[tuple[float, float]]) -> None:
    """Draw a curve of a server."""
    places, values = zip(*sorted(points), strict=True)
    axes.plot(places, values, color=COLOURS[name], marker="o", markersize=4, label=NAMES.get(name, name))


def clients(data: Data) -> Figure:
    """Draw output tokens/s by the number of clients."""
    figure, (axes,) = new_figure(3.2, title="Throughput: all answers together", where=data["where"])
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, row in data["figures"].items():
        if name.endswith("clients"):
            count = int(name.split()[-2])
            for peer, figures in row.items():
                curves.setdefault(peer, []).append((count, figures["median"]))
    for peer, points in curves.items():
        draw_line(axes, peer, points)
    counts = sorted({count for points in curves.values() for count, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:.0f}" for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients, each with one request at a time")
    axes.set_ylabel("output tokens per second")
    axes.legend(frameon=False)
    return figure


def gaps(data: Data) -> Figure:
    """Draw a strip for each server: a line for each token of one stream, so that a gap is a hole."""
    strips: dict[str, dict[str, list[float]]] = data["strips"]
    title = "Gaps: each line is a token of one of eight streams, while long prompts come (triangles)"
    figure, (axes,) = new_figure(0.9 + 0.62 * len(strips), title=title, where=data["where"])
    for place, (peer, strip) in enumerate(strips.items()):
        xs = [x for at in strip["tokens"] for x in (at, at, None)]
        ys = [y for _ in strip["tokens"] for y in (-place - 0.3, -place + 0.3, None)]
        axes.plot(xs, ys, color=COLOURS[peer], linewidth=0.5)
        axes.plot(strip["long"], [-place + 0.42] * len(strip["long"]), "v", color=GREY, markersize=4)
    longest = [data["figures"]["longest gap ms"][peer]["median"] for peer in strips]
    labels = [f"{NAMES.get(peer, peer)}\nlongest {ms / 1000:.2g} s" for peer, ms in zip(strips, longest, strict=True)]
    axes.set_yticks([-place for place in range(len(strips))], labels)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    return figure


def draw_goodput(axes: Axes, curve: dict[str, list[tuple[float, float]]], title: str) -> None:
    """Draw requests in time by the rate of arrival."""
    for name, points in curve.items():
        draw_line(axes, name, points)
    rates = sorted({rate for points in curve.values() for rate, _ in points})
    top = 1.15 * max(value for points in curve.values() for _, value in points)
    axes.plot(rates, rates, color=GREY, linestyle="--", linewidth=1, label="all in time")
    axes.set_ylim(0, top)
    axes.set_title(title, fontsize=9, color=GREY)
    axes.set_xlabel("requests that arrive per second")


def goodput(data: Data) -> Figure:
    """Draw the goodput of servers."""
    figure, (axes,) = new_figure(3.4, title="Goodput: requests that met both goals", where=data["where"])
    curve = {
        name: [(row["rate"], row["goodput"]) for row in rows]
        for name, rows in data["figures"].items()
        if name in COLOURS
    }
    goals = f"first token within {data['ttft_ms'] / 1000:g} s, then {1000 / data['itl_ms']:g} tokens a second"
    draw_goodput(axes, curve, goals)
    axes.set_ylabel("requests in time per second")
    axes.legend(frameon=False)
    return figure


def goodput_simulated(data: Data) -> Figure:
    """Draw the simulated goodput of each machine and trace."""
    title = "Goodput, simulated: requests that met both goals\n"  # the second line is the legend's
    figure, all_axes = new_figure(3.1, len(data["curves"]), title=title, where=data["where"])
    for axes, (name, curve) in zip(all_axes, data["curves"].items(), strict=True):
        machine, trace = name.replace(" on ", "\non ", 1).split(", ")[:2]
        draw_goodput(axes, curve, f"{machine}:\n{TRACES[trace]}")
        axes.set_xlabel("requests/s")
    all_axes[0].set_ylabel("requests in time per second")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.95), ncols=3, frameon=False, fontsize=8)
    return figure


PICTURES: dict[str, Callable[[Data], Figure]] = {
    one.__name__: one for one in (clients, gaps, goodput, goodput_simulated)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "figures")
    parser.add_argument("--pictures", type=Path, default=HERE / "pictures")
    args = parser.parse_args()
    mpl.rcParams.update(STYLE)
    for name, draw in PICTURES.items():
        path = args.folder / f"{name}.json"
        if not path.exists():
            print(f"{path} is missing, so there is no {name}.svg")
            continue
        data = {"where": "machine and day not named", **json.loads(path.read_text())}
        target = args.pictures / f"{name}.svg"
        draw(data).savefig(target, transparent=True, metadata={"Date": None, "Creator": None})
        print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
