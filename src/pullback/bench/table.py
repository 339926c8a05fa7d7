"""The printed result: where and how it was measured, one table per op, the summary, and the notes nobody should miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pullback.bench.ours import NAME
from pullback.bench.results import Results, Row, geometric_mean
from pullback.cli.console import print_table

SHORT_LAYOUT = {"channels_last": "last", "channels_first": "first"}
LEGEND = """ours      median seconds of our op; spread is the distance from the 20th to the 80th percentile
limit     share of the physical limit: copy rate for the bytes of a pooling op, FMA roof for the flops of a convolution
peers     peer's median / our median: above 1 we are faster; * marks a peer whose result differs from the right one
LOSES     the best peer is faster than we are
noisy     the median is more than half again the best time: look at the geometric means of the best times, or measure again"""


def describe(results: Results) -> str:
    """Machine, versions and settings, one line each."""
    m, s = results.machine, results.settings
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    lines = [
        f"machine   {m['cpu']}, {m['cores']} cores in reach, load {m['load']}, {m['system']}",
        f"date      {m['date']}, Python {m['python']}",
        f"versions  {versions}",
        f"settings  {s['threads']} threads, {s['seconds']} s a case and participant, backend {s['backend']}",
    ]
    lines += [f"missing   {name}: {why}" for name, why in results.missing.items()]
    return "\n".join(lines)


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def ratio_text(ratio: float | None, differs: bool = False) -> str:
    return "-" if ratio is None else f"{ratio:.2f}{'*' if differs else ''}"


def note(row: Row) -> str:
    """What the reader must know of a row beside its numbers."""
    notes = []
    if row.ours.differs:
        notes.append(f"OURS IS WRONG (error {row.ours.error:.1e})")
    elif row.ours.why:
        notes.append(f"ours: {row.ours.why}")
    if row.loses:
        notes.append(f"LOSES to {row.best_peer()}")
    notes += [f"{name} differs" for name, entry in row.entries.items() if name != NAME and entry.differs]
    noisy = [name for name, entry in row.entries.items() if entry.noisy]
    return ", ".join(notes + ([f"noisy: {' '.join(noisy)}"] if noisy else []))


def op_rows(results: Results, rows: Sequence[Row]) -> list[list[str]]:
    """The lines of one op's table, the geometric means last."""
    lines = []
    for row in rows:
        peers = [ratio_text(row.ratio(p), p in row.entries and row.entries[p].differs) for p in results.peers]
        ours = [seconds_text(row.ours.median), share_text(row.ours.spread), share_text(row.limit_share)]
        lines.append([row.case, SHORT_LAYOUT[row.layout], *ours, *peers, note(row)])
    for layout in dict.fromkeys(row.layout for row in rows):
        means = _means(results, [row for row in rows if row.layout == layout])
        lines.append(["geometric mean", SHORT_LAYOUT[layout], "", "", "", *means, ""])
    return lines


def _means(results: Results, rows: Sequence[Row], of: Literal["median", "best"] = "median") -> list[str]:
    found = ([r for row in rows if (r := row.ratio(peer, of)) is not None] for peer in results.peers)
    return [ratio_text(geometric_mean(ratios)) for ratios in found]


def summary_rows(results: Results, of: Literal["median", "best"]) -> list[list[str]]:
    """One line per op and layout: geometric mean against each peer and how many cases lose against the best one."""
    lines = []
    for op, layout in dict.fromkeys((row.op, row.layout) for row in results.rows):
        rows = [row for row in results.rows if (row.op, row.layout) == (op, layout) and row.ratios()]
        lost = sum(any((row.ratio(peer, of) or 1) < 1 for peer in row.ratios()) for row in rows)
        if rows:
            lines.append([op, SHORT_LAYOUT[layout], *_means(results, rows, of), f"{lost} of {len(rows)}"])
    return lines


def print_results(results: Results) -> None:
    """Everything on stdout."""
    print(describe(results))
    header = ("case", "channels", "ours", "spread", "limit", *results.peers, "note")
    for op, dtype in dict.fromkeys((row.op, row.dtype) for row in results.rows):
        rows = [row for row in results.rows if (row.op, row.dtype) == (op, dtype) and row.ours.samples]
        if not rows:
            continue
        print_table(f"{op}, {dtype}", header, op_rows(results, rows))
    if any(row.ratios() for row in results.rows):
        header = ("op", "channels", *results.peers, "cases lost")
        print_table("geometric means of the medians", header, summary_rows(results, "median"))
        print_table("geometric means of the best times", header, summary_rows(results, "best"))
    print(LEGEND)
    if any(row.limit_seconds is None for row in results.rows):
        print("limit     not measured: this version of the library cannot measure the machine's copy rate and FMA roof")
    for reason in absences(results):
        print(reason)
    compared = [row for row in results.rows if row.ratios()]
    print(f"{len(results.rows)} rows, {len(compared)} compared, {sum(row.loses for row in compared)} lost to the best peer")
    for row in results.wrong:
        print(f"FAILED {row.op} {row.case} {row.layout} {row.dtype}: {row.ours.why or f'our error is {row.ours.error:.1e}'}")


def absences(results: Results) -> list[str]:
    """Why participants have no time in some rows, equal reasons together."""
    found: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in results.rows:
        for name, entry in row.entries.items():
            if entry.why:
                ops, cases = found.setdefault((name, entry.why), ({}, {}))
                ops[row.op] = cases[row.case] = None
    return [f"not timed {name}: {why} ({', '.join(ops)}; {', '.join(cases)})" for (name, why), (ops, cases) in found.items()]
