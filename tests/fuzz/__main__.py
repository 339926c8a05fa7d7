"""The fuzzer by hand: `make fuzz SECONDS=3600`, or `python -m tests.fuzz --seconds 60 --seed 7 --op conv`."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack

from . import campaign
from .cases import OPS, from_text
from .check import Outcome
from .program import snippet
from .runner import Worker
from .shrink import shrink


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the cases; a fresh one if not given")
    parser.add_argument("--op", action="append", choices=OPS, help="only this op (may be given again)")
    parser.add_argument("--garbage", type=float, default=0.1, help="share of calls with garbage among the arguments")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a call hangs; a first one may compile")
    parser.add_argument("--most", type=int, default=100, help="stop after so many different failures")
    parser.add_argument("--plant", help="a defect of plants.py to find")
    parser.add_argument("--case", help="run this case alone, as a report shows it")
    return parser


def one_case(text: str, limit: float, plant: str | None) -> Outcome:
    """Run one case, and shrink it if it fails."""
    with Worker(limit, plant) as worker:
        case = from_text(text)
        outcome = worker.run(case)
        if outcome.status == "failed":
            case, outcome = shrink(case, outcome, worker.run, campaign.SHRINK_SECONDS)
            print(snippet(case, outcome.category))
    print(f"{outcome.status} on {outcome.kernel or 'no kernel'} {outcome.category} {outcome.text}")
    return outcome


def shown(block: ExitStack, seconds: float) -> Callable[[campaign.Result, float], None]:
    """A progress bar where somebody looks, else a line a minute."""

    def state(result: campaign.Result) -> str:
        return f"{result.cases} calls, {result.statuses['failed']} failed"

    if not sys.stderr.isatty():
        minutes = 0

        def line(result: campaign.Result, passed: float) -> None:
            nonlocal minutes
            if passed // 60 > minutes:
                minutes = int(passed // 60)
                print(f"{minutes} min: {state(result)}", file=sys.stderr, flush=True)

        return line
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    progress = block.enter_context(Progress(*columns, console=Console(stderr=True)))
    task = progress.add_task("starting", total=seconds)
    return lambda result, passed: progress.update(task, completed=min(passed, seconds), description=state(result))


def main() -> int:
    asked = options().parse_args()
    if asked.case:
        return int(one_case(asked.case, asked.limit, asked.plant).status == "failed")
    seed = asked.seed if asked.seed is not None else secrets.randbelow(2**32)
    ops = tuple(asked.op or OPS)
    print(f"seed {seed}", flush=True)
    with ExitStack() as block:
        result = campaign.run(
            seed, asked.seconds, ops=ops, garbage=asked.garbage, limit=asked.limit, plant=asked.plant, most=asked.most,
            progress=shown(block, asked.seconds), found=lambda failure: print(f"\n{failure.report()}\n", flush=True),
        )  # fmt: skip
    print(result.summary(ops, reports=False))
    return int(bool(result.failures))


if __name__ == "__main__":
    sys.exit(main())
