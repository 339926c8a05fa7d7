"""`pullback bench`: choose what to time of the published list, another list, or a PyTorch model, and run it."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli import (
    bench_files,
    bench_shape_command,
    cliffs_command,
    kernels_command,
    scaling_command,
    schedule_command,
)
from pullback.cli.bench_options import (
    LAYOUTS,
    add_run_options,
    check_dtypes,
    check_files,
    check_settings,
    narrow,
    narrow_to_kernel,
)
from pullback.cli.bench_peers import choose_peers, print_peers
from pullback.cli.bench_run import run_selection
from pullback.rules import FLOAT_NAMES

if TYPE_CHECKING:
    from pullback.bench import Selection
    from pullback.bench.cases import Case

EXAMPLES = """examples:
  pullback bench --list                                   ops, cases and peers, and why a peer is missing
  pullback bench                                          everything against every fast peer found (long)
  pullback bench --op avg_pool_grad --case 3d-2s2 --peer torch --layout channels_last --seconds 0.2
  pullback bench --op max_pool_grad --op avg_pool_grad --threads 1 --json results.json --plot ratios.svg
  pullback bench --op conv_grad_input --peer all          also the slow peers: ONNX Runtime and TF.js (make peers)
  pullback bench --peer none                              our own times and the physical limit, no peers
shapes of your own:
  pullback bench conv --input 4x30x30x24 --filter 3 --out 48 --stride 2
  pullback bench pool --input 8x56x56x64 --window 3 --stride 2 --padding same
  pullback bench --from mymodel:make --peer torch         those of a PyTorch model; make() returns the model and its inputs
  pullback bench --cases mine.json                        {"conv": [{"size": [30, 30], "c_in": 24, "c_out": 48, "kernel": 3}]}
from what was measured:
  pullback bench plot results.json ratios.svg --theme dark
  pullback bench page results.json page.md                a page with a table of all rows
random shapes:
  pullback bench cliffs --seconds 60                      where ours is slower than PyTorch, a neighbouring shape, the other layout
of our kernels alone:
  pullback bench scaling --plot scaling.svg               rates against batch, channels, size and threads
  pullback bench kernels                                  what each kernel gains over the next one of its list
  pullback bench schedule --plot schedule.svg             speed-up at up to 64 threads, predicted from single pieces

Each task is first checked against the reference backend in float64, then everybody takes turns on the same data.
Exit status 1 if one of our own results was wrong or missing, 2 for a bad request; losing a case is no error.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="time the ops against PyTorch, JAX, TensorFlow, ONNX Runtime and TF.js",
        description="Times our ops against other systems on a published list of shapes, or on your own. Options marked + may be "
        "repeated.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to time")
    what.add_argument("--op", action="append", metavar="OP", help="+ only this op")
    what.add_argument("--case", action="append", metavar="CASE", help="+ only this case of the list")
    what.add_argument("--layout", action="append", choices=LAYOUTS, help="+ only this layout (default: both)")
    what.add_argument("--dtype", action="append", choices=FLOAT_NAMES, help="+ this dtype (default float32)")
    what.add_argument("--kernel", metavar="NAME", help="our kernel of this name, for the ops that have one")
    lists = what.add_mutually_exclusive_group()
    lists.add_argument(
        "--cases", type=Path, metavar="FILE", help="another case list; a case needs only what differs from defaults"
    )
    lists.add_argument(
        "--from",
        metavar="MODULE:FUNCTION",
        help="the distinct shapes of a PyTorch model's forward; the function returns (model, inputs)",
    )
    what.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="cuda: the kernels for an NVIDIA GPU against PyTorch's there, on a list of their own (--case, --op, --dtype, --json)",
    )  # fmt: skip
    what.add_argument("--list", action="store_true", help="print ops, cases and peers, and run nothing")
    add_run_options(parser)
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="commands of its own (each has --help)", metavar="COMMAND")
    for command in (bench_shape_command, bench_files, scaling_command, kernels_command, schedule_command, cliffs_command):
        command.add(actions)


def _run_on_gpu(options: argparse.Namespace) -> int:
    """The benchmark of the cuda backend, which has a list and a table of its own."""
    if find_spec("torch") is None or find_spec("triton") is None:
        print("pullback bench: --device cuda needs PyTorch and Triton: pip install 'pullback[cuda]'", file=sys.stderr)
        return 2
    from pullback.bench.cuda.run import main

    given = list(options.case or ())
    for option, values in (("--op", options.op), ("--dtype", options.dtype)):
        given += [part for value in values or () for part in (option, value)]
    main(given + (["--json", str(options.json)] if options.json else []))
    return 0


def run(options: argparse.Namespace) -> int:
    if options.device == "cuda":
        return _run_on_gpu(options)
    try:
        selection = select(options)
        check_files(options.json, options.plot)
    except (ValueError, OSError) as error:
        print(f"pullback bench: {error}", file=sys.stderr)
        return 2
    if options.list:
        _print_list(selection)
        return 0
    return run_selection("pullback bench", selection, options)


def select(options: argparse.Namespace) -> Selection:
    """What the options ask for; ValueError for a name that does not exist or a peer that is not there."""
    from pullback.bench import Selection
    from pullback.bench.cases import LAYOUTS, OPS

    check_settings(options.threads, options.seconds, options.backend)
    dtypes = check_dtypes(options.dtype)
    cases = _cases(options)
    named = narrow("--case", options.case, [case.name for case in cases])
    ops = narrow_to_kernel(options.kernel, narrow("--op", options.op, list(OPS)), bool(options.op), options.backend)
    chosen = [case for case in cases if case.name in named and any(case.has(op) for op in ops)]
    if not chosen:
        raise ValueError(f"no op of {', '.join(ops)} runs on the cases {', '.join(named)}")
    return Selection(
        cases=chosen,
        peers=choose_peers(options.peer),
        ops=ops,
        layouts=tuple(dict.fromkeys(options.layout or LAYOUTS)),
        dtypes=dtypes,
        threads=options.threads,
        seconds=options.seconds,
        backend=options.backend,
        kernel=options.kernel,
    )


def _cases(options: argparse.Namespace) -> list[Case]:
    from pullback.bench.cases import load_cases

    model = getattr(options, "from")
    if model is None:
        return load_cases(options.cases)
    from pullback.bench.from_model import find_cases

    cases, left_out = find_cases(model)
    for what, count in left_out.items():
        print(f"pullback bench: left out: {what} ({count} in the forward)", file=sys.stderr)
    return cases


def _print_list(selection: Selection) -> None:
    print("ops")
    for op in selection.ops:
        print(f"  {op}")
    print("cases")
    width = max(len(case.name) for case in selection.cases)
    for case in selection.cases:
        w, groups = case.window, f" groups {case.groups}" if case.groups > 1 else ""
        padding = w.pad_low if w.pad_low == w.pad_high else case.pads
        geometry = f"window {w.kernel} stride {w.stride} padding {padding} dilation {w.dilation}{groups}"
        print(f"  {case.name:<{width}} {case.kind:<4} {case.input_shape} -> {case.output_shape}, {geometry}")
    print_peers()
