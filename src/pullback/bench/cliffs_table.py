"""The printed result of `pullback bench cliffs`: means by kind and op, the rows that lose, and the cliffs of our own."""

from __future__ import annotations

from pullback.bench.cliffs import CLIFF, LOSS, Cliffs, Row
from pullback.bench.table import print_machine, ratio_text, seconds_text
from pullback.bench.trust import busy_summary
from pullback.cli.console import print_table

RATIO = "ratio     PyTorch's time / ours in the same layout, medians: above 1 ours is faster"
COST = f"cost      our time / our time in the other layout, or for an operation of the neighbour; shown above {CLIFF}"


def summary_rows(found: Cliffs) -> list[list[str]]:
    return [
        [name, str(part.rows), ratio_text(part.mean), f"{part.losing:.1%}", ratio_text(part.worst)]
        for name, part in found.summaries().items()
    ]


def losing_rows(rows: list[Row]) -> list[list[str]]:
    return [
        [
            row.shape, ratio_text(row.ratio), seconds_text(row.seconds("ours")), seconds_text(row.seconds("peer")),
            f"{row.op} {row.layout} {row.case}, {row.kernel}" + (", busy" if row.busy else ""),
        ]
        for row in rows
    ]  # fmt: skip


def cliff_rows(found: list[tuple[float, str, Row]]) -> list[list[str]]:
    return [
        [row.shape, ratio_text(cost), than, f"{row.op} {row.layout} {row.case}, {row.kernel}" + (", busy" if row.busy else "")]
        for cost, than, row in found
    ]


def print_cliffs(found: Cliffs, most: int) -> None:
    """Print the summary, and of the losing rows and cliffs the worst `most`."""
    machine, settings = found.machine, found.settings
    print_machine(machine, f"{len(found.rows)} rows" if found.partial else "")
    print("settings  seed {seed}, threads {threads}, {dtype}, backend {backend}, against {peer}".format(**settings))
    for row in found.wrong:
        print(
            f"WRONG     {row.op} {row.layout} {row.case}: ours differs from the peer by {row.error:.1e} of its norm; {row.command}"
        )
    if lines := summary_rows(found):
        print_table(f"{len(found.rows)} rows", ("rows of", "number", "geometric mean", f"under {LOSS}", "worst"), lines)
        print(RATIO)
    losing = found.losing()
    if losing:
        title = f"slower than PyTorch: {len(losing)} rows under {LOSS}" + (f", the worst {most}" if len(losing) > most else "")
        print_table(title, ("row", "ratio", "ours", "peer", "what"), losing_rows(losing[:most]))
    cliffs = found.cliffs()
    if cliffs:
        title = f"slower than our own: {len(cliffs)} over {CLIFF}" + (f", the worst {most}" if len(cliffs) > most else "")
        print_table(title, ("row", "cost", "than", "what"), cliff_rows(cliffs[:most]))
        print(COST)
    if losing or cliffs:
        print("again     pullback bench cliffs --row SEED:NUMBER, or with the right answer checked:")
        shown = [*losing[:most], *(row for *_, row in cliffs[:most])]
        print("\n".join(f"  {command}" for command in dict.fromkeys(row.command for row in shown)))
    if busy := sum(row.busy for row in found.rows):
        print(busy_summary(busy, len(found.rows), "rows"))
