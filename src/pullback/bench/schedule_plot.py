"""The picture of `pullback bench schedule`: speed-up against threads, a panel for each op, and the measured two threads."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from pullback.bench.plot_style import MARKERS, SMALL, THEMES, Theme, dress, marker, new_figure, save_figure
from pullback.bench.schedule import THREADS, Row, Schedule

PANEL_PX, COLUMNS = 250, 4


def draw(schedule: Schedule, path: Path, theme: str = "light") -> None:
    """A line for every call; the dashed diagonal is what all threads together could do."""
    style = THEMES[theme]
    ops = list(dict.fromkeys(row.op for row in schedule.rows))
    lines = -(-len(ops) // COLUMNS)
    figure = new_figure(style, PANEL_PX * lines, *_frame(style, schedule))
    axes = figure.subplots(lines, min(COLUMNS, len(ops)), squeeze=False, sharey=True)
    for panel, op in zip(axes.flat, ops, strict=False):
        _panel(panel, style, op, [row for row in schedule.rows if row.op == op])
    for panel in list(axes.flat)[len(ops) :]:
        panel.set_visible(False)
    save_figure(figure, path)


def _panel(panel: Any, theme: Theme, op: str, rows: list[Row]) -> None:
    dress(panel, theme)
    for scale, ticks in ((panel.set_xscale, panel.set_xticks), (panel.set_yscale, panel.set_yticks)):
        scale("log", base=2)
        ticks(THREADS, [str(count) for count in THREADS])
    panel.minorticks_off()
    panel.set_title(op, fontsize=SMALL, color=theme.ink, loc="left")
    panel.plot(THREADS, THREADS, color=theme.ink, linewidth=1.2, linestyle=(0, (5, 3)))
    for row in rows:
        colour = theme.layouts[row.layout]
        panel.plot(THREADS, [row.speedup(count) for count in THREADS], color=colour, linewidth=1.0, alpha=0.7)
        if {1, 2} <= set(row.measured):
            seen = row.measured[1] / row.measured[2]
            panel.plot([2], [seen], zorder=3, alpha=0.7, **marker(theme, MARKERS[row.layout], colour, hollow=True, size=4.0))


def _frame(theme: Theme, schedule: Schedule) -> tuple[str, str, list[Any]]:
    line = import_module("matplotlib.lines").Line2D
    handles = [line([], [], color=theme.layouts[name], label=name) for name in MARKERS]
    handles += [
        line([], [], color=theme.ink, linestyle=(0, (5, 3)), label="all threads together"),
        line([], [], label="measured with two", **marker(theme, "o", theme.muted, hollow=True, size=4.0)),
    ]
    large = [row.efficiency(16) for row in schedule.rows if row.is_large]
    told = f" Large calls at 16 threads: {median(large):.0%} of 16 in the middle, {min(large):.0%} at least." if large else ""
    footer = f"{schedule.settings['dtype']}; pieces timed on one thread of {schedule.machine['cpu']}.{told}"
    return "Speed-up by threads, predicted from the times of single pieces", footer, handles
