"""`pullback bench cliffs`: draw random shapes, time them behind a progress bar, print where ours is slow."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli.bench_options import check_files, check_settings, narrow
from pullback.cli.bench_run import timing

if TYPE_CHECKING:
    from pullback.bench.cliffs import Search

DEFAULT_ROWS = 200
EXAMPLES = """examples:
  pullback bench cliffs                                   200 rows of a new seed (about two minutes)
  pullback bench cliffs --seed 7 --seconds 60             as many of seed 7 as fit into a minute
  pullback bench cliffs --seed 7 --op conv_grad_input --kind grouped --rows 100
  pullback bench cliffs --row 7:31 --row 7:44             two shapes again, in both layouts
  pullback bench cliffs --no-peer --kind pooling          ours alone: neighbours and layouts
  pullback bench cliffs --seed 7 --first 500 --rows 100   shapes of another part of the same sequence

A shape is made from the seed and its number alone, the same on every machine: an op, 1 to 3 axes, sizes, batch 1 to 64, channels
that need not fill vectors, windows of 1 to 7, strides of 1 to 4, padding, dilation, groups. Work is bounded to about 0.2 to 10 ms.
Each is timed in both layouts; ours, PyTorch in the same layout, and ours on a neighbour (one parameter changed: whole vectors
of channels or width, the next stride) take turns on the same data. A row that seems to lose is timed twice as long. Our result must
agree with PyTorch's: exit status 1 where one does not; losing is no error.
"""


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "cliffs",
        help="random shapes: where ours is slower than PyTorch, a neighbouring shape, or the other layout",
        description="Times random shapes and reports where ours is slower than PyTorch in the same layout, or pays more than 1.5 "
        "times as much for an operation as on a neighbouring shape or in the other layout.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the shapes (default: a new one, which is printed)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first shape (default 0)")
    parser.add_argument("--rows", type=int, metavar="N", help=f"rows, two for each shape (default {DEFAULT_ROWS})")
    parser.add_argument("--seconds", type=float, default=None, metavar="S", help="end after about this time instead")
    parser.add_argument("--row", action="append", metavar="SEED:NUMBER", help="only this shape (may be repeated)")
    parser.add_argument("--op", action="append", metavar="OP", help="only this op (may be repeated)")
    parser.add_argument(
        "--kind", action="append", metavar="KIND", help="dense, grouped, depthwise or pooling (may be repeated)"
    )
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of both (default 2)")
    parser.add_argument("--no-peer", action="store_true", help="without PyTorch: neighbours and layouts alone")
    parser.add_argument("--worst", type=int, default=20, metavar="N", help="rows to print of each list (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, settings and all samples")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.bench import cliffs, cliffs_table

    try:
        search = _search(options)
        check_files(options.json, None)
    except ValueError as error:
        print(f"pullback bench cliffs: {error}", file=sys.stderr)
        return 2
    found = cliffs.frame(search)
    try:
        with timing("pullback bench cliffs", found, search.size(), cliffs.save, options.json) as tick:
            cliffs.run(search, tick, into=found)
    except KeyboardInterrupt:
        if found.rows:
            cliffs_table.print_cliffs(found, options.worst)
        raise
    cliffs_table.print_cliffs(found, options.worst)
    return 1 if found.wrong else 0


def _search(options: argparse.Namespace) -> Search:
    from pullback.bench.cliff_shapes import CLIFF_OPS, GROUPS
    from pullback.bench.cliffs import Search
    from pullback.bench.peers.torch_peer import TorchPeer

    check_settings(options.threads, options.seconds or 0.0, None)
    if (options.rows is not None and options.rows < 1) or options.first < 0 or options.worst < 0:
        raise ValueError("--rows is at least 1, --first and --worst at least 0")
    peer = None if options.no_peer else TorchPeer()
    if peer is not None and (why := peer.missing()) is not None:
        raise ValueError(f"{why}; --no-peer compares ours with neighbours and the other layout alone")
    seed, numbers = _numbers(options)
    rows = options.rows if options.rows or options.seconds or numbers else DEFAULT_ROWS
    ops, groups = narrow("--op", options.op, CLIFF_OPS), narrow("--kind", options.kind, GROUPS)
    if all((group == "pooling") == op.startswith("conv") for op in ops for group in groups):
        raise ValueError(f"no shape of the kinds {', '.join(groups)} has an op of {', '.join(ops)}")
    return Search(
        seed, numbers, ops, groups, rows=rows, seconds=options.seconds, threads=options.threads, peer=peer, first=options.first
    )  # fmt: skip


def _numbers(options: argparse.Namespace) -> tuple[int, list[int] | None]:
    """The seed, and the shapes that --row names."""
    if not options.row:
        return (secrets.randbelow(10**6) if options.seed is None else options.seed), None
    try:
        pairs = [tuple(map(int, text.split(":"))) for text in options.row]
        [seed] = {seed for seed, _ in pairs} | ({options.seed} if options.seed is not None else set())
        numbers = [number for _, number in pairs]
    except ValueError:
        raise ValueError(f"--row {' '.join(options.row)}: each is SEED:NUMBER, and all of one seed") from None
    if min(numbers) < 0:
        raise ValueError("--row: numbers begin at 0")
    return seed, numbers
