"""The picture of `pullback bench scaling`: rates against batch, channels and size, below the limits of the machine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.bench.cases import OPS
from pullback.bench.plot_style import NORMAL, PX, SMALL, THEMES, Theme, dress, marker, new_figure, save_figure
from pullback.bench.scaling import BASE, Point, Scaling

LINE_PX = 250  # of panels
MARKS = ("o", "s", "^", "D")
HEADINGS = {
    "conv": "3x3 convolution in GFLOP/s; dashed: the FMA roof, which Winograd can pass and a direct convolution cannot",
    "pool": "3x3 max pooling in GB/s of what must move; dashed: a plain copy of as many bytes",
}


def draw(scaling: Scaling, path: Path, theme: str = "light") -> None:
    """Draw a run into a .png or .svg file: a line of panels for convolutions, one for pooling."""
    style = THEMES[theme]
    ops = list(dict.fromkeys(point.op for point in scaling.points))
    kinds = [kind for kind in HEADINGS if any(OPS[op][0] == kind for op in ops)]
    axes_names = list(dict.fromkeys(point.axis for point in scaling.points))
    looks = {op: (style.series[i % len(MARKS)], MARKS[i % len(MARKS)]) for i, op in enumerate(ops)}
    figure = new_figure(style, LINE_PX * len(kinds), *_frame(style, scaling, looks))
    axes = figure.subplots(len(kinds), len(axes_names), squeeze=False, sharey="row")
    for line, kind in zip(axes, kinds, strict=True):
        for panel, axis in zip(line, axes_names, strict=True):
            found = {op: points for (op, name), points in scaling.series().items() if name == axis and OPS[op][0] == kind}
            _panel(panel, style, axis, found, looks, scaling.threads)
        line[0].set_ylim(0, line[0].get_ylim()[1])
        above = line[0].annotate(HEADINGS[kind], (0, 1), (0, 22), "axes fraction", textcoords="offset points", fontsize=NORMAL)
        above.set(color=style.ink, weight="bold", in_layout=False)  # it runs over the panels beside it
    save_figure(figure, path)


def _panel(
    panel: Any, theme: Theme, axis: str, found: dict[str, list[Point]], looks: dict[str, tuple[str, str]], threads: int
) -> None:
    dress(panel, theme)
    panel.set_xscale("log", base=2)
    steps = sorted({point.value for points in found.values() for point in points})
    panel.set_xticks(steps, [str(step) for step in steps])
    panel.xaxis.set_minor_locator(import_module("matplotlib.ticker").NullLocator())
    panel.set_title(f"\n\n{axis}", fontsize=SMALL, color=theme.ink, loc="left")  # below the heading of the line
    for op, points in found.items():
        colour, shape = looks[op]
        values = [point.value for point in points]
        panel.plot(values, [point.rate(threads) for point in points], color=colour, linewidth=1.8)
        for point in points:
            panel.plot([point.value], [point.rate(threads)], zorder=3, **marker(theme, shape, colour, point.busy, 7.0))
    measured = next(iter(found.values()), [])
    limits = [(point.value, limit) for point in measured if (limit := point.limit_rate) is not None]
    if limits:
        panel.plot(*zip(*limits, strict=True), color=theme.ink, linewidth=2 * PX, linestyle=(0, (5, 3)))


def _frame(theme: Theme, scaling: Scaling, looks: dict[str, tuple[str, str]]) -> tuple[str, str, list[Any]]:
    """Title, where it was measured, and the handles of a legend."""
    machine, settings, line = scaling.machine, scaling.settings, import_module("matplotlib.lines").Line2D
    handles = [
        line([], [], label=op, **{**marker(theme, shape, colour), "linestyle": "-"}) for op, (colour, shape) in looks.items()
    ]
    if any(point.busy for point in scaling.points):
        handles.append(line([], [], label="busy: not to be trusted", **marker(theme, "o", theme.muted, hollow=True)))
    mean = scaling.mean_speedup()
    speedup = "" if mean is None else f" 1 to {scaling.threads} threads: {mean:.2f} times faster on the largest."
    where = f"{machine['cpu']}, {scaling.threads} threads, {machine['date'][:10]}"
    footer = f"{settings['dtype']}, {settings['layout']}.{speedup} {where}"
    base = settings.get("base", BASE)
    shape = "{batch} images of {size} x {size} with {channels} channels".format(**base)
    return f"Rate against size: {shape}, one axis changed at a time", footer, handles
