"""The printed errors of convolutions: ours and every peer's against float64, and the bars that ours must keep."""

from __future__ import annotations

from pullback.bench.results import Entry, Results, Row
from pullback.cli.console import print_table

LEGEND = """ours, peers  norm-wise error |got - right| / |right| against float64 (bar: 2e-5 in float32)
cells        our largest |error| / (n * eps * sum of |products|), n products summed; a kernel of plain sums keeps within 1
!            beyond its bar"""


def error_text(entry: Entry | None) -> str:
    if entry is None or entry.error is None:
        return "-"
    return f"{entry.error:.1e}{'' if entry.error <= entry.tolerance else '!'}"


def cells_text(entry: Entry) -> str:
    """Kernels of fewer multiplications promise nothing of single cells."""
    if entry.cell_error is None:
        return "-"
    return f"{entry.cell_error:.1e}{'!' if entry.exceeds_bound else ''}"


def accuracy_rows(results: Results, rows: list[Row], first: str = "case") -> list[list[str]]:
    return [
        [getattr(row, first), row.layout.removeprefix("channels_"), error_text(row.ours), cells_text(row.ours),
         *(error_text(row.entries.get(peer)) for peer in results.peers), row.ours.kernel]
        for row in rows
    ]  # fmt: skip


def print_accuracy(results: Results) -> None:
    """A table for each op, or one for the only case."""
    rows = [row for row in results.rows if row.ours.cell_error is not None]
    title, first = ("case", "op") if len({row.case for row in rows}) == 1 else ("op", "case")
    for name, dtype in dict.fromkeys((getattr(row, title), row.dtype) for row in rows):
        chosen = [row for row in rows if (getattr(row, title), row.dtype) == (name, dtype)]
        header = (first, "channels", "ours", "cells", *results.peers, "kernel")
        print_table(f"{name}, {dtype}: errors", header, accuracy_rows(results, chosen, first))
    if rows:
        print(LEGEND)
