"""The picture of a run: one panel per op, a bar per case and peer, to the right of the line at 1 where we are faster."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.bench.results import Results, Row
from pullback.bench.table import SHORT_LAYOUT

WINNING = ("#1f6f8b", "#62a9b8", "#a8d3d8", "#4d5b8c", "#9aa5cf")
LOSING = "#d1495b"
COLUMNS = 3
BAR_INCHES = 0.17
ROOM = 2.2  # beyond the longest bar, for its number


def draw(results: Results, path: Path) -> None:
    """Draw a run into a .png or .svg file; a run without any comparison is a ValueError."""
    rows = [row for row in results.rows if row.ratios()]
    if not rows:
        raise ValueError("nothing to plot: no case of this run was compared with a peer")
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"a plot is a .png or .svg file, not {path.name!r}")
    peers = [peer for peer in results.peers if any(peer in row.ratios() for row in rows)]
    panels = list(dict.fromkeys((row.op, row.dtype) for row in rows))
    columns = min(COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    longest = max(sum(len(row.ratios()) + 0.8 for row in rows if (row.op, row.dtype) == panel) for panel in panels)
    figure = import_module("matplotlib.figure").Figure(
        figsize=(2.0 + 4.2 * columns, 1.3 + lines * (0.9 + BAR_INCHES * longest)), layout="constrained"
    )
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, ", ".join(panel), [row for row in rows if (row.op, row.dtype) == panel], peers)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    _legend(figure, results, peers, columns)
    with import_module("matplotlib").rc_context({"svg.fonttype": "none"}):  # text as text: a tenth of the size
        figure.savefig(path, dpi=150)


def _panel(axis: Any, title: str, rows: list[Row], peers: list[str]) -> None:
    ticks, labels, place = [], [], 0.0
    for row in rows:
        ratios = row.ratios()
        ticks.append(place + (len(ratios) - 1) / 2)
        labels.append(f"{row.case} · {SHORT_LAYOUT[row.layout]}")
        for peer in peers:
            if peer not in ratios:
                continue
            ratio = ratios[peer]
            colour = WINNING[peers.index(peer) % len(WINNING)]
            axis.barh(place, ratio - 1, left=1, height=0.86, color=colour if ratio >= 1 else LOSING)
            side, gap = ("left", 1.04) if ratio >= 1 else ("right", 1 / 1.04)
            whom = "" if ratio >= 1 else f"{peer} "
            mark = "*" if row.entries[peer].differs else ""
            axis.text(ratio * gap, place, f"{whom}{ratio:.2f}{mark}", va="center", ha=side, fontsize=6.5)
            place += 1
        place += 0.8
    axis.set_xscale("log", base=2)
    found = [1.0, *(ratio for row in rows for ratio in row.ratios().values())]
    axis.set_xlim(min(found) / ROOM, max(found) * ROOM)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(ticks, labels, fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=9, loc="left")
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


def _legend(figure: Any, results: Results, peers: list[str], columns: int) -> None:
    patch = import_module("matplotlib.patches").Patch
    handles = [patch(color=WINNING[i % len(WINNING)], label=f"vs {p} {results.versions[p]}") for i, p in enumerate(peers)]
    handles.append(patch(facecolor=LOSING, label="peer is faster (* its result differs)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 2 * columns), fontsize=8, frameon=False)
    machine, settings = results.machine, results.settings
    figure.suptitle(
        f"Speed of pullback {results.versions['pullback']} relative to its peers (peer time / our time)\n"
        f"{machine['cpu']}, {settings['threads']} threads, {machine['date'][:10]}",
        fontsize=10,
    )
