"""`pullback bench`: choose what to time, run it behind a progress bar, print the tables, write JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli import kernels_command, scaling_command
from pullback.cli.bench_options import check_files, check_plot, check_settings, narrow
from pullback.cli.console import progress

if TYPE_CHECKING:
    from pullback.bench import Selection
    from pullback.bench.peers.base import Peer

EXAMPLES = """examples:
  pullback bench --list                                   ops, cases and peers, and why a peer is missing
  pullback bench                                          everything against every fast peer found (long)
  pullback bench --op avg_pool_grad --case 3d-2s2 --peer torch --layout channels_last --seconds 0.2
  pullback bench --op max_pool_grad --op avg_pool_grad --threads 1 --json results.json --plot ratios.svg
  pullback bench --op conv_grad_input --peer all          also the slow peers: ONNX Runtime and TF.js (make peers)
  pullback bench --peer none                              our own times and the physical limit, no peers
  pullback bench plot results.json ratios.png             draw a run again from its JSON
  pullback bench scaling --plot scaling.svg               time against batch, channels, size and threads, ours alone
  pullback bench kernels                                  what each kernel gains over the next one of its list

Each task is first checked against the reference backend in float64, then everybody takes turns on the same data.
Exit status 1 if one of our own results was wrong or missing, 2 for a bad request; losing a case is no error.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="time the ops against PyTorch, JAX, TensorFlow, ONNX Runtime and TF.js",
        description="Times our ops against other systems on a published list of shapes. Options marked + may be repeated.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", action="append", metavar="OP", help="+ only this op")
    parser.add_argument("--case", action="append", metavar="CASE", help="+ only this case of the list")
    parser.add_argument(
        "--peer", action="append", metavar="PEER", help="+ only this peer; 'all' adds the slow ones, 'none' takes none"
    )
    parser.add_argument("--layout", action="append", choices=("channels_last", "channels_first"), help="+ only this layout")
    parser.add_argument(
        "--dtype", action="append", choices=("float32", "float64", "float16", "bfloat16"), help="+ this dtype (default float32)"
    )
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of every participant (default 2)")
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="timed seconds a case and participant (default 0.5)"
    )
    parser.add_argument("--backend", metavar="NAME", help="our backend (default: the one the library takes by itself)")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="another case list of the same form as the published one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions and all samples")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios (.png or .svg, needs matplotlib)")
    parser.add_argument("--list", action="store_true", help="print ops, cases and peers, and run nothing")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="instead of running", metavar="scaling, kernels or plot")
    scaling_command.add(actions)
    kernels_command.add(actions)
    plot = actions.add_parser("plot", help="draw a run again from its JSON", description="Draws a saved run.")
    plot.add_argument("results", type=Path, help="what --json wrote")
    plot.add_argument("picture", type=Path, help="the .png or .svg file to write")
    plot.set_defaults(run=run_plot)


def run(options: argparse.Namespace) -> int:
    from pullback import bench
    from pullback.bench import results, table

    try:
        selection = select(options)
        check_files(options.json, options.plot)
    except (ValueError, OSError) as error:
        print(f"pullback bench: {error}", file=sys.stderr)
        return 2
    if options.list:
        _print_list(selection)
        return 0
    # A bar that redraws itself from a thread of its own would disturb what is timed.
    with progress("timing", selection.size(), in_background=False) as tick:
        found = bench.run(selection, tick)
    table.print_results(found)
    if options.json is not None:
        results.save(found, options.json)
    if options.plot is not None:
        _draw(found, options.plot)
    return 1 if found.wrong else 0


def run_plot(options: argparse.Namespace) -> int:
    from pullback.bench import results, scaling, scaling_plot

    try:
        check_plot(options.picture)
        stretched = scaling.load(options.results)
        if stretched is not None:
            scaling_plot.draw(stretched, options.picture)
        else:
            _draw(results.load(options.results), options.picture)
    except (ValueError, OSError) as error:
        print(f"pullback bench plot: {error}", file=sys.stderr)
        return 2
    return 0


def select(options: argparse.Namespace) -> Selection:
    """What the options ask for; ValueError for a name that does not exist or a peer that is not there."""
    from pullback.bench import Selection
    from pullback.bench.cases import LAYOUTS, OPS, load_cases

    check_settings(options.threads, options.seconds, options.backend)
    if "bfloat16" in (options.dtype or ()) and find_spec("ml_dtypes") is None:
        raise ValueError("--dtype bfloat16 needs ml_dtypes: pip install 'pullback[bfloat16]'")
    cases = load_cases(options.cases)
    named = narrow("--case", options.case, [case.name for case in cases])
    ops = narrow("--op", options.op, list(OPS))
    chosen = [case for case in cases if case.name in named and any(OPS[op][0] == case.kind for op in ops)]
    if not chosen:
        raise ValueError(f"no op of {', '.join(ops)} runs on the cases {', '.join(named)}")
    return Selection(
        cases=chosen,
        peers=_peers(options.peer),
        ops=ops,
        layouts=tuple(options.layout or LAYOUTS),
        dtypes=tuple(dict.fromkeys(options.dtype or ("float32",))),
        threads=options.threads,
        seconds=options.seconds,
        backend=options.backend,
    )


def _peers(wanted: list[str] | None) -> list[Peer]:
    """The peers to time. One asked for by name must be there; the others may be missing, and the table says so."""
    from pullback.bench.peers import all_peers

    known = all_peers()
    if not wanted:
        return [peer for peer in known if not peer.slow]
    if wanted == ["none"]:
        return []
    if "all" in wanted:
        return known
    names = narrow("--peer", wanted, [*(peer.name for peer in known), "all", "none"])
    chosen = [peer for peer in known if peer.name in names]
    for peer in chosen:
        why = peer.missing()
        if why is not None:
            raise ValueError(f"--peer {peer.name}: {why}")
    return chosen


def _print_list(selection: Selection) -> None:
    from pullback.bench.peers import all_peers

    print("ops")
    for op in selection.ops:
        print(f"  {op}")
    print("cases")
    for case in selection.cases:
        w, groups = case.window, f" groups {case.groups}" if case.groups > 1 else ""
        geometry = f"window {w.kernel} stride {w.stride} padding {w.pad_low} dilation {w.dilation}{groups}"
        print(f"  {case.name:<15} {case.kind:<4} {case.input_shape} -> {case.output_shape}, {geometry}")
    print("peers")
    for peer in all_peers():
        why = peer.missing()
        asked = ", only when asked for" if peer.slow else ""
        found = f"{peer.version()}, {' and '.join(peer.layouts)}{asked}" if why is None else why
        print(f"  {peer.name:<10} {found}")


def _draw(found: Any, path: Path) -> None:
    from pullback.bench import plot

    plot.draw(found, path)
