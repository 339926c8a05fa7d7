"""`pullback bench conv` and `pullback bench pool`: a shape of the user's own, timed as the published ones are."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from pullback.cli.bench_options import add_run_options, check_dtypes, check_files, check_settings, narrow, narrow_to_kernel
from pullback.cli.bench_peers import choose_peers
from pullback.cli.bench_run import run_selection
from pullback.cli.bench_shapes import KINDS, NOTE, add_shape_options, case_of, layouts_of

if TYPE_CHECKING:
    from pullback.bench import Selection
    from pullback.bench.cases import Kind

EXAMPLES: dict[Kind, str] = {
    "conv": """examples:
  pullback bench conv --input 4x30x30x24 --filter 3 --out 48 --stride 2
  pullback bench conv --input 4x24x30x30 --layout channels_first --filter 3x5 --out 48 --padding same --op conv_grad_input
  pullback bench conv --input 8x56x56x144 --filter 3 --out 144 --groups 144 --padding 1 --dtype float16 --peer torch
  pullback bench conv --input 8x2048x128 --filter 9 --out 128 --kernel direct --peer none    1-D, our kernel by name
  pullback bench conv --input 4x30x30x24 --filter 3 --out 48 --layout channels_last --layout channels_first
""",
    "pool": """examples:
  pullback bench pool --input 8x56x56x64 --window 3 --stride 2 --padding same
  pullback bench pool --input 8x56x56x64 --window 2 --op avg_pool_grad --op avg_pair --peer torch
  pullback bench pool --input 8x64x56x56 --layout channels_first --window 3 --stride 2 --padding 1
  pullback bench pool --input 2x32x32x32x16 --window 2 --op max_pair     3-D; the stride is the window
""",
}


def add(actions: Any) -> None:
    for kind, what in KINDS.items():
        parser = actions.add_parser(
            kind,
            help=f"time {what} on a shape of your own",
            description=f"Times {what} on a shape of your own, against the same peers as the list.",
            epilog=NOTE + "\n" + EXAMPLES[kind],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_shape_options(parser, kind, inherited=True)
        add_run_options(parser, inherited=True)
        parser.set_defaults(run=partial(run, kind))


def run(kind: Kind, options: argparse.Namespace) -> int:
    command = f"pullback bench {kind}"
    try:
        selection = _select(kind, options)
        check_files(options.json, options.plot)
    except (ValueError, TypeError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    return run_selection(command, selection, options)


def _select(kind: Kind, options: argparse.Namespace) -> Selection:
    from pullback.bench import Selection
    from pullback.bench.cases import OPS

    for name in ("case", "cases", "from", "list"):
        if getattr(options, name):
            raise ValueError(f"--{name} is of the case lists, not of a shape of your own")
    check_settings(options.threads, options.seconds, options.backend)
    ops = narrow("--op", options.op, [op for op, (of, _) in OPS.items() if of == kind])
    return Selection(
        cases=[case_of(kind, options)],
        peers=choose_peers(options.peer),
        ops=narrow_to_kernel(options.kernel, ops, bool(options.op), options.backend),
        layouts=layouts_of(options),
        dtypes=check_dtypes(options.dtype),
        threads=options.threads,
        seconds=options.seconds,
        backend=options.backend,
        kernel=options.kernel,
    )
