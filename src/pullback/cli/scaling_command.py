"""`pullback bench scaling`: time our ops at growing sizes behind a progress bar, print the tables, write JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import LAYOUTS, add_theme, check_files, check_settings, narrow
from pullback.cli.bench_run import draw_pictures, timing

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
    parser.add_argument("--layout", choices=LAYOUTS, default=LAYOUTS[0])
    parser.add_argument("--dtype", choices=("float32", "float64", "float16"), default="float32")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads to compare with one (default 2)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="timed seconds a point (default 0.3)")
    parser.add_argument("--backend", metavar="NAME", help="our backend (default: the one the library takes by itself)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, settings and all samples")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates (.png or .svg, needs matplotlib)")
    add_theme(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.bench import scaling, scaling_plot, scaling_table

    try:
        stretch = _stretch(options)
        check_files(options.json, options.plot)
    except ValueError as error:
        print(f"pullback bench scaling: {error}", file=sys.stderr)
        return 2
    found = scaling.frame(stretch)
    with timing("pullback bench scaling", found, stretch.size(), scaling.save, options.json) as tick:
        scaling.run(stretch, tick, into=found)
    draw_pictures(scaling_plot.draw, found, options.plot, options.theme)
    scaling_table.print_scaling(found)
    return 0


def _stretch(options: argparse.Namespace) -> Any:
    from pullback.bench.scaling import SCALING_OPS, Stretch

    check_settings(options.threads, options.seconds, options.backend)
    ops = narrow("--op", options.op, SCALING_OPS)
    return Stretch(
        ops, layout=options.layout, dtype=options.dtype, threads=options.threads, seconds=options.seconds, backend=options.backend
    )  # fmt: skip
