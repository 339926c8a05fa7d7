"""`pullback bench schedule`: predict the speed-up of our ops at 1 to 64 threads, check it against two, print and draw it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import LAYOUTS, add_theme, check_files, narrow
from pullback.cli.bench_run import draw_pictures, timing

EXAMPLES = """examples:
  pullback bench schedule                                   the published list and more, all ops (minutes)
  pullback bench schedule --op conv_grad_filter --plot schedule.svg
  pullback bench schedule --op conv --case 512-7-n16 --layout channels_first
  pullback bench schedule --bandwidth 60                    no call passes 60 GB/s, however many threads

How it works: every job of a call, cut as for so many threads, is run piece by piece on one, and each piece timed; empty jobs
give the costs of calling, claiming, waking and joining. Then the same pieces are claimed in the same order by 1 to 64 threads
that exist only on paper. What real threads share beside that is left out: memory bandwidth (but see --bandwidth), caches, a
frequency that falls, a second socket. So it shows an upper bound: too few pieces, uneven ones, work that no thread shares.
"""


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "schedule",
        help="predict the speed-up by threads, up to 64, from the times of single pieces",
        description="Predicts how our ops gain from threads that this machine need not have, and checks it against two.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", action="append", metavar="OP", help="only this op, also batch_norm(_grad) (may be repeated)")
    parser.add_argument("--case", action="append", metavar="CASE", help="only this case (may be repeated)")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="only this layout")
    parser.add_argument("--dtype", choices=("float32", "float64", "float16"), default="float32")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="another case list of the same form as the published one")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S", help="of the machine's memory, as a floor of all times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, costs and all rows")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the speed-ups (.png or .svg, needs matplotlib)")
    add_theme(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.bench import schedule_measure, schedule_plot, schedule_table
    from pullback.bench.schedule import Schedule

    try:
        check_files(options.json, options.plot)
        if options.bandwidth is not None and not options.bandwidth > 0:
            raise ValueError(f"--bandwidth {options.bandwidth}: it must be above 0")
        wanted = _subjects(options)
    except (ValueError, OSError) as error:
        print(f"pullback bench schedule: {error}", file=sys.stderr)
        return 2
    bandwidth = None if options.bandwidth is None else options.bandwidth * 1e9
    found, overhead = schedule_measure.frame(options.layout or LAYOUTS, options.dtype, bandwidth)

    def save(schedule: Schedule, path: Path) -> None:
        path.write_text(json.dumps(schedule_measure.document(schedule), indent=1, allow_nan=False) + "\n")

    with timing("pullback bench schedule", found, len(wanted), save, options.json) as tick:
        schedule_measure.run(wanted, found, overhead, tick)
    draw_pictures(schedule_plot.draw, found, options.plot, options.theme)
    schedule_table.print_schedule(found)
    return 0


def _subjects(options: argparse.Namespace) -> Any:
    from pullback.bench import schedule_measure
    from pullback.bench.cases import LAYOUTS, OPS, load_cases

    cases = load_cases(options.cases)
    if options.cases is None:
        cases += schedule_measure.more_cases()
    ops = narrow("--op", options.op, [*(op for op in OPS if not op.endswith("_pair")), *schedule_measure.TRAINING])
    known = [*dict.fromkeys([*(case.name for case in cases), *schedule_measure.NORM_SHAPES])]
    named = narrow("--case", options.case, known)
    found = schedule_measure.subjects(ops, cases, options.layout or LAYOUTS, options.dtype)
    found = [subject for subject in found if subject.case in named]
    if not found:
        raise ValueError(f"no op of {', '.join(ops)} runs on the cases {', '.join(named)}")
    return found
