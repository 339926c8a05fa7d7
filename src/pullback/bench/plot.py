"""The picture of a run: a panel per op, a line per case, a mark per layout, right of 1 where we are faster than the peer."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.bench.cases import OPS
from pullback.bench.peers.base import FULL_NAMES
from pullback.bench.plot_style import (
    MARKERS,
    NORMAL,
    SMALL,
    THEMES,
    Theme,
    dress,
    marker,
    new_figure,
    save_figure,
)  # fmt: skip
from pullback.bench.results import LOSS, Results, Row, geometric_mean, is_loss
from pullback.bench.table import SHORT_LAYOUT

COLUMNS = 3
MOST_TICKS = 8
LINE_PX, PANEL_PX = 19, 70  # of a case, and around the cases of a panel
LOSING = "X"
ROOM = 1.25  # beyond the outermost marks
ROOM_FOR_NUMBERS = 0.3  # left of a loss, of the (logarithmic) distance to the other end
Panel = tuple[str, str]


def narrowed(results: Results, family: str | None = None, ops: list[str] | None = None) -> Results:
    """The rows of a family (conv or pool) and of some ops."""
    rows = [row for row in results.rows if family in (None, OPS[row.op][0]) and (not ops or row.op in ops)]
    return replace(results, rows=rows)


def draw(results: Results, path: Path, theme: str = "light", peer: str | None = None) -> None:
    """Draw a run into a .png or .svg file, against a peer or the fastest of each row's layout; ValueError without any."""
    rows = {key: found for key, found in _panels(results, peer).items() if found}
    if not rows:
        raise ValueError(f"nothing to plot: no case of this run was compared with {peer or 'a peer'}")
    style = THEMES[theme]
    families = [[key for key in rows if OPS[key[0]][0] == kind] for kind in ("conv", "pool")]
    lines = [line for family in families for line in _in_lines(family)]
    heights = [PANEL_PX + LINE_PX * max(len(_cases(rows[key])) for key in line) for line in lines]
    figure = new_figure(style, sum(heights), *_frame(style, results, peer))
    axes = figure.subplots(len(lines), max(map(len, lines)), squeeze=False, height_ratios=heights)
    limits = _limits([_ratio(row, peer) for found in rows.values() for row in found])
    for axis_line, line in zip(axes, lines, strict=True):
        cases = list(dict.fromkeys(case for key in line for case in _cases(rows[key])))
        for column, axis in enumerate(axis_line):
            if column >= len(line):
                axis.set_visible(False)
                continue
            _panel(axis, style, rows[line[column]], cases, peer, limits, labelled=column == 0)
            axis.set_title(_title(line[column], results), fontsize=NORMAL, color=style.ink, weight="bold", loc="left", pad=20)
    save_figure(figure, path)


def _panels(results: Results, peer: str | None) -> dict[Panel, list[Row]]:
    found: dict[Panel, list[Row]] = {}
    for row in results.rows:
        if _against(row, peer) is not None:
            found.setdefault((row.op, row.dtype), []).append(row)
    return found


def _in_lines(panels: list[Panel]) -> list[list[Panel]]:
    """As many lines of panels as needed, none with a single one where two could share."""
    columns = min(COLUMNS, math.ceil(len(panels) / math.ceil(len(panels) / COLUMNS))) if panels else 1
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def _cases(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.case for row in rows))


def _title(panel: Panel, results: Results) -> str:
    several = len({row.dtype for row in results.rows}) > 1
    return ", ".join(panel) if several else panel[0]


def _against(row: Row, peer: str | None) -> str | None:
    """Whom a row is compared with: the peer asked for, or the fastest of its layout."""
    return row.best_peer() if peer is None else peer if row.ratio(peer) is not None else None


def _ratio(row: Row, peer: str | None) -> float:
    return row.ratios()[_against(row, peer) or ""]


def _limits(ratios: list[float]) -> tuple[float, float]:
    least, most = min(ratios), max(2.0, max(ratios) * ROOM)
    return min(0.8, least * (least / most) ** ROOM_FOR_NUMBERS if is_loss(least) else least / ROOM), most


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two, or where they would crowd of four or more; 1 is always among them."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = math.ceil((last - first + 1) / MOST_TICKS)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def _panel(
    axis: Any, theme: Theme, rows: list[Row], cases: list[str], peer: str | None, limits: tuple[float, float], *, labelled: bool
) -> None:
    dress(axis, theme)
    axis.set_xscale("log", base=2)
    axis.set_xlim(*limits)
    axis.set_ylim(len(cases) - 0.4, -0.6)
    ticks = _ticks(*limits)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=SMALL)
    axis.xaxis.set_minor_locator(import_module("matplotlib.ticker").NullLocator())
    axis.set_yticks(range(len(cases)), cases if labelled else [""] * len(cases), fontsize=SMALL, color=theme.ink)
    axis.tick_params(axis="y", length=0)
    axis.axvspan(limits[0], LOSS, color=theme.losing, linewidth=0, zorder=0)
    axis.axvline(1, color=theme.ink, linewidth=1.1)
    for place, layout in enumerate(MARKERS):
        of_layout = [row for row in rows if row.layout == layout]
        if of_layout:
            _marks(axis, theme, of_layout, cases, peer)
            _mean(axis, theme, layout, [_ratio(row, peer) for row in of_layout], place)
    for line, case in enumerate(cases):
        _numbers(axis, theme, [row for row in rows if row.case == case], line, peer)


def _marks(axis: Any, theme: Theme, rows: list[Row], cases: list[str], peer: str | None) -> None:
    for row in rows:
        ratio, whom = _ratio(row, peer), _against(row, peer) or ""
        shift = -0.14 if row.layout == "channels_last" else 0.14  # two equal ratios are both seen
        shape, size = (LOSING, 8.0) if is_loss(ratio) else (MARKERS[row.layout], 6.5)
        look = marker(theme, shape, theme.layouts[row.layout], row.is_busy(whom), size)
        axis.plot([ratio], [cases.index(row.case) + shift], zorder=3, **look)
        if row.entries[whom].differs:
            axis.annotate(
                "*", (ratio, cases.index(row.case)), (6, 0), textcoords="offset points", color=theme.ink, fontsize=NORMAL
            )


def _numbers(axis: Any, theme: Theme, rows: list[Row], line: int, peer: str | None) -> None:
    """The ratios of a case that is lost, left of its marks: of both layouts where both are."""
    lost = [ratio for row in rows if is_loss(ratio := _ratio(row, peer))]
    if lost:
        text = "/".join(f"{ratio:.2f}" for ratio in lost)
        axis.annotate(
            text,
            (min(lost), line),
            (-7, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            color=theme.ink,
            fontsize=SMALL,
        )


def _mean(axis: Any, theme: Theme, layout: str, ratios: list[float], place: int) -> None:
    mean, colour = geometric_mean(ratios) or 1.0, theme.layouts[layout]
    axis.axvline(mean, color=colour, linewidth=1.3, linestyle=(0, (4, 2)) if place == 0 else (0, (1, 1.4)), zorder=1)
    text = f"{SHORT_LAYOUT[layout]} {mean:.2f}"
    axis.annotate(text, (0, 1), (64 * place, 5), "axes fraction", textcoords="offset points", color=colour, fontsize=SMALL)


def _frame(theme: Theme, results: Results, peer: str | None) -> tuple[str, str, list[Any]]:
    """Title, where it was measured, and the handles of a legend."""
    machine, settings, line = results.machine, results.settings, import_module("matplotlib.lines").Line2D
    names = [f"{FULL_NAMES.get(p, p)} {results.versions[p]}" for p in results.peers if peer in (None, p)]
    whom = names[0] if len(names) == 1 else f"the fastest of {', '.join(names)}"
    where = f"{machine['cpu']}, {settings['threads']} threads, {machine['date'][:10]}"
    handles = [
        line([], [], label=layout, **marker(theme, shape, theme.layouts[layout]))
        for layout, shape in MARKERS.items()
        if any(row.layout == layout for row in results.rows)
    ]
    handles.append(line([], [], color=theme.muted, linestyle="--", linewidth=1.3, label="geometric mean"))
    handles.append(line([], [], label=f"we lose (under {LOSS})", **marker(theme, LOSING, theme.muted, size=8.0)))
    if any(row.busy for row in results.rows):
        handles.append(line([], [], label="busy: not to be trusted", **marker(theme, "o", theme.muted, hollow=True)))
    if any(entry.differs for row in results.rows for entry in row.entries.values()):
        handles.append(line([], [], linestyle="none", label="* its result differs"))
    footer = f"peer's time / ours, logarithmic: right of 1 pullback {results.versions['pullback']} is faster. {where}"
    return f"Speed against {whom}", footer, handles
