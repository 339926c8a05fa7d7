"""`pullback bench kernels`: whether every kernel earns its place, behind a progress bar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import check_settings, narrow
from pullback.cli.console import progress

LEAST_GAIN = 1.1
EXAMPLES = """examples:
  pullback bench kernels                                   every op and case of the list
  pullback bench kernels --op conv --layout channels_first --seconds 0.3
  pullback bench kernels --cases held_out.json             another case list of the same form

A kernel earns its place where, over the cases that it takes, it is quicker than the next kernel of its list that could
run them. What is below the bar is marked; nothing else depends on it.
"""


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "kernels",
        help="what each of our kernels gains over the next one of its list",
        description="Times the kernel that dispatch takes and the next one that could run the same case, in turns.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", action="append", metavar="OP", help="only this op (may be repeated)")
    parser.add_argument("--case", action="append", metavar="CASE", help="only this case (may be repeated)")
    parser.add_argument("--layout", action="append", choices=("channels_last", "channels_first"), help="only this layout")
    parser.add_argument("--dtype", choices=("float32", "float64", "float16"), default="float32")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads (default 2)")
    parser.add_argument("--seconds", type=float, default=0.1, metavar="S", help="timed seconds a case and kernel (default 0.1)")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="another case list of the same form as the published one")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.bench import kernels
    from pullback.bench.cases import LAYOUTS, OPS, load_cases

    try:
        check_settings(options.threads, options.seconds, None)
        cases = load_cases(options.cases)
        named = narrow("--case", options.case, [case.name for case in cases])
        ops = narrow("--op", options.op, [op for op in OPS if op not in kernels.PAIRS])
    except (ValueError, OSError) as error:
        print(f"pullback bench kernels: {error}", file=sys.stderr)
        return 2
    chosen = [case for case in cases if case.name in named]
    wanted = kernels.tasks(ops, chosen, options.layout or LAYOUTS, options.dtype)
    with progress("timing", len(wanted), in_background=False) as tick:
        gains = kernels.run(wanted, options.threads, options.seconds, tick)
    kernels.print_gains(gains, LEAST_GAIN)
    return 0
