"""The printed result: where and how it was measured, one table per op, the summary, and the notes nobody should miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.bench.accuracy_table import print_accuracy
from pullback.bench.ours import NAME
from pullback.bench.results import LOSS, Results, Row, Time, geometric_mean, is_loss
from pullback.bench.trust import SPREAD_BAR, busy_summary, load_warning
from pullback.cli.console import print_table

LAYOUT_BAR = 0.85  # what channels_first must reach of the speed of channels_last
# A line of the tables must fit: what does not is cut, the notes first.
SHORT_LAYOUT = {"channels_last": "last", "channels_first": "first"}
SHORT_PEER = {"tensorflow": "tf"}
LIMIT = "limit     share of the physical limit: a copy of the bytes of a pooling op, FMA roof for the flops of a convolution"
LEGEND = f"""ours      median seconds of our op; spread is the distance from the 20th to the 80th percentile
{LIMIT}
writes    share of another limit of pooling: writing the results alone, which a gradient does more of than a copy
peers     peer's median / our median: above 1 we are faster; * marks a peer whose result differs from the right one
best      the fastest of all peers in either layout, its median / our median; ! a loss
LOSES     the best peer of the same layout is faster than we are: a ratio under {LOSS}
?, busy   ours or the peer has a spread beyond {SPREAD_BAR:.0%}: something disturbed it, do not trust the figure before the mark"""


def describe(results: Results) -> str:
    """Machine, versions and settings, one line each."""
    m, s = results.machine, results.settings
    short = {name: f" ({SHORT_PEER[name]})" if name in SHORT_PEER else "" for name in results.versions}
    versions = ", ".join(f"{name} {version}{short[name]}" for name, version in results.versions.items())
    lines = [f"WARNING   {sentence}"] if (sentence := load_warning(m)) else []
    if results.partial:
        lines.append(f"PARTIAL   the run was broken off after {len(results.rows)} rows")
    lines += [
        f"machine   {m['cpu']}, {m['cores']} cores in reach, load {m['load']}, {m['system']}",
        f"date      {m['date']}, Python {m['python']}",
        f"versions  {versions}",
        f"settings  {s['threads']} threads, {s['seconds']} s a case and participant, backend {s['backend']}",
    ]
    if "kernel" in s:
        lines.append(f"kernel    {s['kernel']}, asked for by name")
    lines += [f"missing   {name}: {why}" for name, why in results.missing.items()]
    return "\n".join(lines)


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def peer_text(row: Row, peer: str, busy: str = "?") -> str:
    """The ratio to a peer of the same layout, with its marks."""
    if row.ratio(peer) is None:
        return "-"
    return ratio_text(row.ratio(peer)) + ("*" if row.entries[peer].differs else "") + (busy if row.is_busy(peer) else "")


def short_peer(peer: str) -> str:
    return SHORT_PEER.get(peer, peer)


def rival_text(results: Results, row: Row) -> str:
    """The ratio to the fastest peer in either layout, and who it is."""
    rival = results.rival(row)
    if rival is None:
        return "-"
    where = "" if rival.layout == row.layout else f" {SHORT_LAYOUT[rival.layout]}"
    return f"{rival.ratio:.2f}{'!' if rival.wins else ''}{'?' if rival.busy else ''} {short_peer(rival.peer)}{where}"


def wrong_text(row: Row) -> str:
    cells = f", {row.ours.cell_error:.1e} of a plain sum's bound in a cell" if row.ours.exceeds_bound else ""
    return f"error {row.ours.error:.1e}{cells}"


def note(row: Row) -> str:
    """What the reader must know of a row beside its numbers."""
    notes = []
    if row.ours.differs:
        notes.append(f"OURS IS WRONG ({wrong_text(row)})")
    elif row.ours.why:
        notes.append(f"ours: {row.ours.why}")
    if row.loses:
        notes.append(f"LOSES to {short_peer(row.best_peer() or '')}")
    notes += [f"{short_peer(name)} differs" for name, entry in row.entries.items() if name != NAME and entry.differs]
    return ", ".join(notes + ([f"busy: {' '.join(map(short_peer, row.busy))}"] if row.busy else []))


def op_rows(results: Results, rows: Sequence[Row]) -> list[list[str]]:
    """The lines of one op's table, the geometric means last."""
    lines = [[row.case, *_figures(results, row, has_writes(rows)), note(row)] for row in rows]
    for layout in dict.fromkeys(row.layout for row in rows):
        means = _means(results, [row for row in rows if row.layout == layout])
        lines.append(["geometric mean", SHORT_LAYOUT[layout], *[""] * (3 + has_writes(rows)), *means, ""])
    return lines


def case_rows(results: Results, rows: Sequence[Row]) -> list[list[str]]:
    """The lines of the only case: one for each op, with our kernel."""
    return [[row.op, *_figures(results, row, has_writes(rows)), row.ours.kernel.replace("cpu/", ""), note(row)] for row in rows]


def has_writes(rows: Sequence[Row]) -> bool:
    """Whether a table has the column: only pooling has this limit."""
    return any(row.writes_seconds is not None for row in rows)


def _header(results: Results, rows: Sequence[Row]) -> list[str]:
    peers = [*map(short_peer, results.peers), "best"] if results.peers else []
    return ["layout", "ours", "spread", "limit", *(["writes"] if has_writes(rows) else []), *peers]


def _figures(results: Results, row: Row, writes: bool) -> list[str]:
    ours = [seconds_text(row.ours.median), share_text(row.ours.spread), share_text(row.limit_share)]
    ours += [share_text(row.writes_share)] if writes else []
    peers = [peer_text(row, peer) for peer in results.peers]
    return [SHORT_LAYOUT[row.layout], *ours, *peers, *([rival_text(results, row)] if results.peers else [])]


def _means(results: Results, rows: Sequence[Row], of: Time = "median") -> list[str]:
    """Of the ratios to each peer, and to the fastest of them in either layout."""
    found = [[r for row in rows if (r := row.ratio(peer, of)) is not None] for peer in results.peers]
    if results.peers:
        found.append([rival.ratio for row in rows if (rival := results.rival(row, of)) is not None])
    return [ratio_text(geometric_mean(ratios)) for ratios in found]


def summary_rows(results: Results, of: Time) -> list[list[str]]:
    """Per op and layout: geometric means against each peer and the best, cases lost to the layout's best and to all, busy ones."""
    lines = []
    for op, layout in dict.fromkeys((row.op, row.layout) for row in results.rows):
        rows = [row for row in results.rows if (row.op, row.layout) == (op, layout) and row.ratios()]
        lost = sum(any(is_loss(row.ratio(peer, of) or 1) for peer in row.ratios()) for row in rows)
        lost_to_all = sum(rival.wins for row in rows if (rival := results.rival(row, of)) is not None)
        if rows:
            busy = sum(bool(row.busy) for row in rows)
            counts = [f"{count} of {len(rows)}" for count in (lost, lost_to_all, busy)]
            lines.append([op, SHORT_LAYOUT[layout], *_means(results, rows, of), *counts])
    return lines


def print_results(results: Results) -> None:
    """Everything on stdout."""
    print(describe(results))
    timed = [row for row in results.rows if row.ours.samples]
    if len({row.case for row in timed}) == 1:
        for dtype in dict.fromkeys(row.dtype for row in timed):
            rows = [row for row in timed if row.dtype == dtype]
            print_table(f"{rows[0].case}, {dtype}", ("op", *_header(results, rows), "kernel", "note"), case_rows(results, rows))
    else:
        for op, dtype in dict.fromkeys((row.op, row.dtype) for row in timed):
            rows = [row for row in timed if (row.op, row.dtype) == (op, dtype)]
            print_table(f"{op}, {dtype}", ("case", *_header(results, rows), "note"), op_rows(results, rows))
        if any(row.ratios() for row in results.rows):
            header = ("op", "layout", *map(short_peer, results.peers), "best", "cases lost", "lost to the best", "busy")
            print_table("geometric means of the medians", header, summary_rows(results, "median"))
            print_table("geometric means of the best times", header, summary_rows(results, "best"))
    print_layouts(results)
    print_accuracy(results)
    if timed:
        print(LEGEND)
    if any(row.limit_seconds is None for row in timed):
        print("limit     not measured: this version of the library cannot measure the machine's copy rate and FMA roof")
    for reason in absences(results):
        print(reason)
    compared = [row for row in results.rows if row.ratios()]
    for line in losses(results):
        print(line)
    lost, lost_to_all = sum(row.loses for row in compared), sum(rival.wins for row in compared if (rival := results.rival(row)))
    counts = f"{lost} lost to the best peer of their layout, {lost_to_all} to the best in either"
    print(f"{len(results.rows)} rows, {len(compared)} compared, {counts}")
    if busy := sum(bool(row.busy) for row in results.rows):
        print(busy_summary(busy, len(results.rows), "rows"))
    for row in results.wrong:
        print(f"FAILED {row.op} {row.case} {row.layout} {row.dtype}: {row.ours.why or wrong_text(row)}")


def losses(results: Results) -> list[str]:
    """The cases in which the fastest peer of either layout is faster than we are, one line per op and layout."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in results.rows:
        rival = results.rival(row)
        if rival is not None and rival.wins:
            found.setdefault((row.op, row.layout), []).append(f"{row.case} {rival_text(results, row)}")
    return [f"lost      {op}, {layout}: {', '.join(cases)}" for (op, layout), cases in found.items()]


def print_layouts(results: Results) -> None:
    """How fast channels_first convolutions are beside channels_last ones."""
    speeds = {(row.case, row.dtype, row.op): results.layout_speed(row) for row in results.rows if row.op.startswith("conv")}
    speeds = {key: speed for key, speed in speeds.items() if speed is not None}
    ops = list(dict.fromkeys(op for _, _, op in speeds))
    lines = []
    for case, dtype in dict.fromkeys((case, dtype) for case, dtype, _ in speeds):
        found = [speeds.get((case, dtype, op)) for op in ops]
        marks = ["!" if speed is not None and speed < LAYOUT_BAR else "" for speed in found]
        lines.append([case, dtype, *(ratio_text(speed) + mark for speed, mark in zip(found, marks, strict=True))])
    if lines:
        means = [ratio_text(geometric_mean(s for (_, _, o), s in speeds.items() if s is not None and o == op)) for op in ops]
        title = f"our channels_first speed / our channels_last speed (! under {LAYOUT_BAR})"
        print_table(title, ("case", "dtype", *ops), [*lines, ["geometric mean", "", *means]])


def absences(results: Results) -> list[str]:
    """Why participants have no time in some rows, equal reasons together."""
    found: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in results.rows:
        for name, entry in row.entries.items():
            if entry.why:
                ops, cases = found.setdefault((name, entry.why), ({}, {}))
                ops[row.op] = cases[row.case] = None
    return [f"not timed {name}: {why} ({', '.join(ops)}; {', '.join(cases)})" for (name, why), (ops, cases) in found.items()]


def print_machine(machine: dict[str, Any], partial: str) -> None:
    """Where a run was made, and what makes it doubtful; `partial`: how much there is of one that was broken off."""
    if sentence := load_warning(machine):
        print(f"WARNING   {sentence}")
    if partial:
        print(f"PARTIAL   the run was broken off after {partial}")
    print(f"machine   {machine['cpu']}, {machine['cores']} cores in reach, load {machine['load']}, {machine['date']}")
