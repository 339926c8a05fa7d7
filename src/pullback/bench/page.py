"""A saved run as a page of a documentation: machine and versions, then one table row for each op, case and layout.

The table is HTML inside the Markdown, of class `sortable`; every cell has a `data-sort`, a number where it shows one.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from pullback.bench.peers.base import FULL_NAMES
from pullback.bench.results import LOSS, Results, Row, is_loss
from pullback.bench.table import SHORT_LAYOUT, peer_text, seconds_text, share_text
from pullback.bench.trust import SPREAD_BAR, load_warning

TABLE_ID = "bench-results"
NOTES = f"""Ratios are the peer's median time / ours in the same layout: above 1 we are faster.
**loss**: a ratio under {LOSS}.
**busy**: samples of ours or of the peer spread beyond {SPREAD_BAR:.0%}, so that the ratio is not to be trusted.
**differs**, also a star: the peer's result is not the right one.
*layout*: where the channels are.
*limit*: the share of the physical limit that we reach: for pooling a plain copy of as many bytes, for convolutions the
multiply-adds of the direct algorithm, which Winograd can pass.
*spread*: of our samples, from the 20th to the 80th percentile."""
Cell = tuple[str, float | str | None]  # what it shows, and what it is sorted by; None: nothing to sort by, last


def written(results: Results, suffix: str = ".md") -> str:
    """The text of a page (.md), or of the table alone (.html)."""
    if suffix == ".html":
        return table(results)
    if suffix != ".md":
        raise ValueError(f"a page is a .md or .html file, not one of {suffix or 'no'} suffix")
    return "\n".join(["# Benchmark results", "", *_where(results), "", NOTES, "", *_warnings(results), table(results)])


def _where(results: Results) -> list[str]:
    m, s = results.machine, results.settings
    kernel = f", our kernel `{s['kernel']}`" if "kernel" in s else ""
    facts = {
        "machine": f"{m['cpu']}, {m['cores']} cores in reach, load {m['load']} at the start, {m['system']}",
        "date": f"{m['date']}, Python {m['python']}",
        "versions": ", ".join(f"{FULL_NAMES.get(name, name)} {version}" for name, version in results.versions.items()),
        "settings": f"{s['threads']} threads, {s['seconds']} s a case and participant, backend `{s['backend']}`{kernel}",
        **{f"missing: {name}": why for name, why in results.missing.items()},
    }
    return ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items())]


def _warnings(results: Results) -> list[str]:
    """What makes the figures worth less, each with an empty line behind it."""
    busy = sum(bool(row.busy) for row in results.rows)
    found = [
        f"{load_warning(results.machine)}." if load_warning(results.machine) else "",
        f"{busy} of {len(results.rows)} rows are busy." if busy else "",
        f"The run was broken off after {len(results.rows)} rows." if results.partial else "",
    ]
    return [line for text in found if text for line in (f"**{text[0].upper()}{text[1:]}**", "")]


def table(results: Results) -> str:
    """One row for each op, case, layout and dtype: kernel, time, ratio to each peer, share of the limit, spread, marks."""
    peers = [FULL_NAMES.get(peer, peer) for peer in results.peers]
    several = len({row.dtype for row in results.rows}) > 1
    header = ("op", "case", "layout", *(("dtype",) if several else ()), "kernel", "time", *peers, "limit", "spread", "marks")
    lines = [
        f'<table id="{TABLE_ID}" class="sortable">',
        "<thead>",
        f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in header)}</tr>",
    ]
    lines += ["</thead>", "<tbody>", *(_line(results, row, several) for row in results.rows), "</tbody>", "</table>"]
    return "\n".join(lines) + "\n"


def _line(results: Results, row: Row, several: bool) -> str:
    marks = _marks(row)
    texts: list[Cell] = [(row.op, row.op), (row.case, row.case), (SHORT_LAYOUT[row.layout], row.layout)]
    texts += [(row.dtype, row.dtype)] if several else []
    numbers: list[Cell] = [(seconds_text(row.ours.median).replace(" ", "\N{NO-BREAK SPACE}"), row.ours.median)]
    numbers += [(peer_text(row, peer, " busy"), row.ratio(peer)) for peer in results.peers]
    numbers += [(share_text(share), share) for share in (row.limit_share, row.ours.spread)]
    cells = [*texts, (row.ours.kernel or "-", row.ours.kernel), *numbers, (", ".join(marks), len(marks))]
    kinds = "".join(f" {name}" for name in dict.fromkeys(mark.partition(":")[0] for mark in marks))
    inner = "".join(_cell(cell, row.shape if place == 1 else "") for place, cell in enumerate(cells))
    return f'<tr class="row{kinds}">{inner}</tr>'


def _cell(cell: Cell, title: str) -> str:
    text, value = cell
    key = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    hint = f' title="{escape(title)}"' if title else ""
    return f'<td data-sort="{escape(key)}"{hint}>{escape(text)}</td>'


def _marks(row: Row) -> list[str]:
    """Words for what a reader must know: each begins with the name of its class."""
    found: Iterable[tuple[str, list[str]]] = (
        ("loss", [peer for peer, ratio in row.ratios().items() if is_loss(ratio)]),
        ("busy", row.busy),
        ("differs", [name for name, entry in row.entries.items() if entry.differs]),
    )
    marks = [f"{mark}: {' '.join(FULL_NAMES.get(name, name) for name in names)}" for mark, names in found if names]
    return marks if row.ours.samples else [*marks, f"missing: {row.ours.why or 'not timed'}"]
