"""`pullback tune`: measure this CPU behind a progress bar, show it beside the built-in figures, and keep it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback import registry
from pullback.cli.bench_options import check_files
from pullback.cli.console import print_table, progress

if TYPE_CHECKING:
    from pullback.cpu.engine.profile import Profile

EXAMPLES = """examples:
  pullback tune                     measure and keep (about two seconds, once for a version and a CPU, on a quiet machine)
  pullback tune --dry-run           measure and keep nothing
  pullback tune --json here.json    also write the figures to a file
  pullback tune --forget            choose by the built-in figures again
  PULLBACK_PROFILE=here.json ...    choose by the figures of a file: alike on all machines of a cluster
  PULLBACK_PROFILE=builtin ...      choose by the built-in figures, whatever is kept
  PULLBACK_PROFILE=measure ...      measure at the first op, where nothing is kept

Kernels are chosen by what they would cost. The costs were measured on one CPU (the built-in figures); here they are multiplied by
how much dearer each kind of work is on this one, beside its multiply-adds. Another choice may give other last bits of a result: see
docs/cpu.md.
"""
# What each figure is: words, scale and unit.
ROWS = {
    "fma": ("multiply-adds, one core", 1e9, "GFLOP/s"),
    "fma_all": ("multiply-adds, all cores", 1e9, "GFLOP/s"),
    "l1": ("copies in the first-level cache", 1e9, "GB/s"),
    "l2": ("copies in the second-level cache", 1e9, "GB/s"),
    "l3": ("copies in the last-level cache", 1e9, "GB/s"),
    "memory": ("copies in memory, one core", 1e9, "GB/s"),
    "memory_all": ("copies in memory, all cores", 1e9, "GB/s"),
    "transpose": ("transposed elements", 1e9, "G/s"),
    "transform": ("points of Winograd's tiles", 1e9, "G/s"),
    "scatter": ("max-pool gradient by scatter, elements", 1e9, "G/s"),
    "phases": ("the same by phases", 1e9, "G/s"),
    "gather": ("the same by gather", 1e9, "G/s"),
    "dispatch": ("a job on two threads", 1e-6, "us"),
    "dispatch_thread": ("each further thread", 1e-6, "us"),
    "wake": ("waking workers that sleep", 1e-6, "us"),
}
FACTORS = {
    "transforming": "Winograd's transforms",
    "transposing": "transposes",
    "moving": "moves of single elements",
    "copying": "copies",
    "waiting": "waiting for memory",
    "calling": "beginning and end of a job",
}


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure this CPU, so that kernels are chosen by its own figures",
        description="Measures rates of this CPU and what it costs to hand out work, prints them beside the built-in figures, and "
        "keeps them in the cache folder. Exit status 1 if they cannot be kept there.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.add_argument("--forget", action="store_true", help="measure nothing; remove what is kept of this CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    why = registry.why_unavailable(registry.CPU)
    try:
        check_files(options.json, None)
    except ValueError as error:
        why = str(error)
    if why is not None:
        print(f"pullback tune: {why}", file=sys.stderr)
        return 2
    from pullback.cpu.engine import profile_file

    if options.forget:
        gone = profile_file.forget()
        print(
            f"{profile_file.path()}: {'removed' if gone else 'there was nothing'}; kernels are chosen by the built-in figures"
        )
        return 0
    found = _measure()
    print_figures(found)
    if options.json is not None:
        options.json.write_text(profile_file.text_of(found))
    if options.dry_run:
        return 0
    if not profile_file.write(found):
        print(f"pullback tune: nothing can be kept in {profile_file.path().parent}", file=sys.stderr)
        return 1
    print(f"kept in {profile_file.path()}; kernels are chosen by these figures from the next process on")
    return 0


def _measure() -> Profile:
    from pullback.bench.machine import describe_machine
    from pullback.bench.trust import load_warning
    from pullback.cpu import calibrate

    if sentence := load_warning(describe_machine()):
        print(f"pullback tune: {sentence}", file=sys.stderr)
    with progress("measuring", calibrate.ROUNDS * len(calibrate.STEPS), in_background=False) as tick:
        return calibrate.measure(tick)


def print_figures(found: Profile) -> None:
    """Each figure beside the built-in one, then what that makes of the tuned costs."""
    from pullback.cpu.engine.profile import BUILT_IN, SECONDS

    lines = []
    for name, (words, scale, unit) in ROWS.items():
        here, there = getattr(found, name) / scale, getattr(BUILT_IN, name) / scale
        lines.append(
            [words, f"{here:.3g} {unit}", f"{there:.3g} {unit}", f"{there / here if name in SECONDS else here / there:.2f} x"]
        )
    print_table(f"{found.cpu}, {found.level}", ("figure", "here", "built-in", "as fast"), lines)
    costs = [[words, f"{getattr(found, name):.2f}"] for name, words in FACTORS.items()]
    costs += [
        [f"max-pool gradient by {kernel}, beside phases", f"{found.pooling(kernel):.2f}"] for kernel in ("scatter", "gather")
    ]
    print_table("costs, beside those of multiply-adds", ("of", "times the built-in"), costs)
