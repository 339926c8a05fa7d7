"""`pullback explain`: which kernel would run a shape of the user's own, and why each before it would not."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from pullback import registry
from pullback.cli.bench_options import check_dtypes, check_settings, narrow, narrow_to_kernel
from pullback.cli.bench_shapes import KINDS, NOTE, add_shape_options, case_of, layouts_of

if TYPE_CHECKING:
    from pullback.bench.cases import Case, Kind

EXAMPLES = """examples:
  pullback explain conv --input 4x30x30x24 --filter 3 --out 48 --stride 2
  pullback explain conv --input 4x30x30x24 --filter 3 --out 48 --op conv_grad_input --kernel winograd
  pullback explain conv --input 4x24x30x30 --layout channels_first --filter 3 --out 48 --dtype float64
  pullback explain pool --input 8x56x56x64 --window 3 --stride 2 --padding same --op max_pool_grad
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="which kernel would run a convolution or a pooling, and why",
        description="Prints what pb.explain says of a call: which kernel runs, which refuse, which are slower. Runs nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="what to explain", metavar="conv or pool", required=True)
    for kind, what in KINDS.items():
        below = actions.add_parser(
            kind, help=what, description=f"Explains {what}.", epilog=NOTE + "\n" + EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_shape_options(below, kind)
        below.add_argument(
            "--backend", metavar="NAME", help="the backend to ask (default: the one the library takes by itself)"
        )
        below.set_defaults(run=partial(run, kind))


def run(kind: Kind, options: argparse.Namespace) -> int:
    from pullback.bench.cases import OPS
    from pullback.bench.kernels import PAIRS

    try:
        check_settings(1, 0, options.backend)
        ops = narrow("--op", options.op, [op for op, (of, _) in OPS.items() if of == kind and op not in PAIRS])
        ops = narrow_to_kernel(options.kernel, ops, bool(options.op), options.backend)
        case, dtypes = case_of(kind, options), check_dtypes(options.dtype)
    except (ValueError, TypeError) as error:
        print(f"pullback explain {kind}: {error}", file=sys.stderr)
        return 2
    try:
        with registry.backend(options.backend or registry.default_backend()):
            asked = product(dtypes, layouts_of(options), ops)
            texts = [_explained(case, op, dtype, layout, options.kernel) for dtype, layout, op in asked]
    except MemoryError as error:
        print(f"pullback explain {kind}: the arrays do not fit into memory: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(texts))
    return 0


def _explained(case: Case, op: str, dtype: str, layout: Any, kernel: str | None) -> str:
    import numpy as np

    from pullback.bench import ours
    from pullback.bench.cases import Task
    from pullback.bench.data import Data, numpy_dtype

    x, dy, f = (np.zeros(shape, numpy_dtype(dtype)) for shape in (case.input_shape, case.output_shape, case.filter_shape))
    task, data = Task(op, case, dtype, layout), Data(case, x, dy, f)
    [call] = ours.calls_of(task, data, ours.placeholder(task, data))
    explanation = ours.by_name(kernel, partial(ours.explain_call, call))()
    return op + str(explanation).removeprefix(call.func.__name__)  # max_pool_with_indices is a keyword of max_pool
