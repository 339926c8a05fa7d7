"""The picture of `pullback bench scaling`: time against work for each axis, both logarithmic, with the lines of perfect scaling."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.bench.scaling import Point, Scaling

COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#4d5b8c")


def draw(scaling: Scaling, path: Path) -> None:
    """Draw a run into a .png or .svg file."""
    axes_names = list(dict.fromkeys(point.axis for point in scaling.points))
    ops = list(dict.fromkeys(point.op for point in scaling.points))
    figure = import_module("matplotlib.figure").Figure(figsize=(1.0 + 3.6 * len(axes_names), 4.4), layout="constrained")
    panels = figure.subplots(1, len(axes_names), squeeze=False, sharey=True)[0]
    for panel, name in zip(panels, axes_names, strict=True):
        for op, colour in zip(ops, COLOURS * len(ops), strict=False):
            _line(panel, scaling.series()[op, name], scaling.threads, colour)
        steps = [point.value for point in scaling.points if point.axis == name]
        _dress(panel, f"{name} {min(steps)} to {max(steps)}")
    panels[0].set_ylabel("time in ms", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    ideal = import_module("matplotlib.lines").Line2D([], [], color="grey", linestyle="--", linewidth=1)
    figure.legend(
        [*handles, ideal], [*labels, "perfect scaling"], loc="outside lower center", ncols=len(ops) + 1, fontsize=8, frameon=False
    )  # fmt: skip
    figure.suptitle(_title(scaling), fontsize=10)
    with import_module("matplotlib").rc_context({"svg.fonttype": "none"}):  # text as text: a tenth of the size
        figure.savefig(path, dpi=150)


def _line(panel: Any, points: list[Point], threads: int, colour: str) -> None:
    """An op's times, and dashed what they would be if a unit of work always took what it takes in the largest step."""
    largest = points[-1]
    work = [point.work / largest.work for point in points]
    times = [point.seconds(threads) * 1e3 for point in points]
    panel.plot(work, [share * times[-1] for share in work], color=colour, linestyle="--", linewidth=1, alpha=0.6)
    panel.plot(work, times, color=colour, marker="o", markersize=3.5, linewidth=1.6, label=points[0].op)


def _dress(panel: Any, title: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("work, relative to the largest", fontsize=8)
    panel.set_title(title, fontsize=9, loc="left")
    panel.tick_params(labelsize=7)
    panel.grid(alpha=0.25)
    for spine in ("top", "right"):
        panel.spines[spine].set_visible(False)


def _title(scaling: Scaling) -> str:
    machine, settings, mean = scaling.machine, scaling.settings, scaling.mean_speedup()
    speedup = "" if mean is None else f"; one thread to {scaling.threads}: {mean:.2f} times faster on the largest"
    return (
        f"Time against work: 3x3 convolution and max pooling, {settings['dtype']}, {settings['layout']}{speedup}\n"
        f"{machine['cpu']}, threads: {scaling.threads}, {machine['date'][:10]}"
    )
