"""`pullback bench scaling`: time our ops at growing sizes behind a progress bar, print the tables, write JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import check_files, check_settings, narrow
from pullback.cli.console import progress

EXAMPLES = """examples:
  pullback bench scaling                                       all ops, two threads (about a minute)
  pullback bench scaling --json scaling.json --plot scaling.svg
  pullback bench scaling --op conv --layout channels_first --threads 8
  pullback bench plot scaling.json scaling.png                 draw a run again from its JSON
"""


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "scaling",
        help="how our times grow with batch, channels and size, and shrink with threads",
        description="Times a 3x3 convolution, its gradients and a pooling gradient at growing batch, channels and size: time per "
        "unit of work relative to the largest, and the speed-up by threads of the largest.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", action="append", metavar="OP", help="only this op (may be repeated)")
    parser.add_argument("--layout", choices=("channels_last", "channels_first"), default="channels_last")
    parser.add_argument("--dtype", choices=("float32", "float64", "float16"), default="float32")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads to compare with one (default 2)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="timed seconds a point (default 0.3)")
    parser.add_argument("--backend", metavar="NAME", help="our backend (default: the one the library takes by itself)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, settings and all samples")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time against work (.png or .svg, needs matplotlib)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.bench import scaling, scaling_plot, scaling_table

    try:
        stretch = _stretch(options)
        check_files(options.json, options.plot)
    except ValueError as error:
        print(f"pullback bench scaling: {error}", file=sys.stderr)
        return 2
    # A bar that redraws itself from a thread of its own would disturb what is timed.
    with progress("timing", stretch.size(), in_background=False) as tick:
        found = scaling.run(stretch, tick)
    scaling_table.print_scaling(found)
    if options.json is not None:
        scaling.save(found, options.json)
    if options.plot is not None:
        scaling_plot.draw(found, options.plot)
    return 0


def _stretch(options: argparse.Namespace) -> Any:
    from pullback.bench.scaling import SCALING_OPS, Stretch

    check_settings(options.threads, options.seconds, options.backend)
    ops = narrow("--op", options.op, SCALING_OPS)
    return Stretch(
        ops, layout=options.layout, dtype=options.dtype, threads=options.threads, seconds=options.seconds, backend=options.backend
    )  # fmt: skip
