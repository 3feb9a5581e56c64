"""Picture of peers_http.py's figures: output tokens/s by the number of clients, gaps beside long prompts.

`python tests/bench/peers_plot.py CLIENTS.json MIX.json PICTURE.png --title "two cores of …"`: two results or one twice.
"""

import argparse
import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from peers_http import CLIENTS

Rows = dict[str, dict[str, float]]  # figures by peer
# Paul Tol's bright scheme: safe for the colour-blind.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
GAPS = {
    "P50 gap ms": "median gap",
    "P99 gap ms": "99th percentile",
    "longest gap ms": "longest gap",
    "long TTFT ms": "first token of\na long prompt",
}


def draw_clients(axes: Axes, figures: dict[str, Rows], colours: dict[str, str]) -> None:
    """Draw medians, with a line from the least to the most."""
    for peer, colour in colours.items():
        rows = [figures[name][peer] for name in CLIENTS]
        medians, counts = [row["median"] for row in rows], list(CLIENTS.values())
        axes.plot(counts, medians, color=colour, marker="o", label=peer)
        axes.vlines(counts, [row["min"] for row in rows], [row["max"] for row in rows], color=colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(CLIENTS.values()), [str(count) for count in CLIENTS.values()])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients at once (prompts of 128 tokens)")
    axes.set_ylabel("output tokens/s")
    axes.legend(frameon=False)


def draw_gaps(axes: Axes, figures: dict[str, Rows], colours: dict[str, str]) -> None:
    """Draw bars beside each other, on a logarithmic scale."""
    width = 0.8 / len(colours)
    for number, (peer, colour) in enumerate(colours.items()):
        places = [place + (number - (len(colours) - 1) / 2) * width for place in range(len(GAPS))]
        values = [figures[name][peer]["median"] for name in GAPS]
        bars = axes.bar(places, values, width, color=colour)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=7)
    axes.set_xticks(range(len(GAPS)), list(GAPS.values()), fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("ms, eight streams while long prompts come")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("clients", "mix", "picture"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--title", required=True)
    args = parser.parse_args()
    clients, mix = (json.loads(path.read_text())["figures"] for path in (args.clients, args.mix))
    colours = dict(zip(clients[next(iter(CLIENTS))], COLOURS, strict=False))
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_clients(left, clients, colours)
    draw_gaps(right, mix, colours)
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(args.title, fontsize=10)
    figure.savefig(args.picture)


if __name__ == "__main__":
    main()
