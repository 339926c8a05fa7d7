"""`pullback check`: run the check with a progress bar and print one row per kernel, or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback import registry, settings
from pullback.cli.console import print_table, progress
from pullback.cli.warmup_command import compile_missing

VERDICTS = ("equal", "mended", "refused", "undefined", "proved", "failed")
LEGEND = """equal      our answer is the recorded answer of the real system (convolution within 1e-5; pooling of TF.js bit for bit
           on the reference backend, and on the default backend within 1e-6 of that; maxima bit for bit on both)
mended     the real system's gradient is wrong and ours is right: ours passes the named proof, theirs fails it,
           and inside quirks() ours is theirs
refused    the real system refuses or crashes, and so do we, with a clear exception
undefined  the real system reads past its data or checks nothing; we refuse
proved     adjoint identity, finite differences or conserved sums on a random problem"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        help="hold the library against TF.js, ONNX Runtime and mathematics",
        description="Replays every recorded answer of TF.js 4.22.0 and ONNX Runtime 1.19.2 and proves gradients on random "
        "problems. Exit status 1 if anything failed.",
        epilog=LEGEND,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one case in eight of every kernel: is this installation sound?")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback import check
    from pullback.cpu.machine_code.notice import nothing_said

    every = check.QUICK if options.quick else 1
    _compile_ahead(every)
    with progress("checking", check.size(every)) as tick, nothing_said():
        rows = check.run(tick, every)
    if options.json:
        print(json.dumps([_as_json(row) for row in rows], indent=1))
    else:
        _print(rows)
        if options.quick:
            print(f"that was one case in {check.QUICK}; pullback check runs all {check.size()}")
    return 1 if any(row.failures for row in rows) else 0


def _compile_ahead(every: int) -> None:
    """Compile the kernels that the check will ask for, several at a time."""
    from pullback import check

    if registry.default_backend() != registry.CPU:
        return
    from pullback.cpu.machine_code import disk_cache, dry_run, find
    from pullback.cpu.machine_code.warmup import POOL

    if not find.has_compiler() or not disk_cache.is_kept():
        return
    with progress("planning", check.size(every)) as tick, dry_run.dry_run(faulty=False) as planned, np.errstate(all="ignore"):
        check.run(tick, every)  # whose outcomes mean nothing: no kernel runs
    compile_missing([*POOL, *planned.wanted], settings.get_num_threads())


def _as_json(row: Any) -> dict[str, Any]:
    failures = [{"case": f.case, "why": f.detail} for f in row.failures]
    return {"system": row.system, "kernel": row.kernel, **row.counts, "proofs": row.proofs, "failures": failures}


def _print(rows: Sequence[Any]) -> None:
    from pullback.check import tfjs_gradients

    for system in dict.fromkeys(row.system for row in rows):
        own = [row for row in rows if row.system == system]
        shown = [verdict for verdict in VERDICTS if verdict == "failed" or any(row.counts.get(verdict) for row in own)]
        lines = [(r.kernel, *(str(r.counts.get(v, 0)) for v in shown), ", ".join(sorted(r.proofs))) for r in own]
        print_table(f"pullback against {system}", ("kernel", *shown, "proof of the mended"), lines)
    print(LEGEND)
    if not tfjs_gradients.can_run():
        print(f"\n{tfjs_gradients.recorded()} recorded gradients and refusals left out: pip install 'pullback[autograd]'")
    failures = [(row, failure) for row in rows for failure in row.failures]
    for row, failure in failures:
        print(f"FAILED {row.kernel} {failure.case}: {failure.detail}")
    mended = sum(row.counts.get("mended", 0) for row in rows)
    total = sum(row.total for row in rows)
    print(f"\n{total} cases, {mended} where the real system is wrong and we are right, {len(failures)} failed")
