"""Try the measured numbers of each family (cpu/*/tuning.py) at half and twice their value, beside the one in use.

    python tools/sweep.py [--family conv] [--number PANEL_L2] [--threads 2]      (or: make fit; some minutes, on a quiet machine)

Every number is tried alone, on the benchmark's cases of its family: sizes of blocks, thresholds, and the factors of the cost models
that choose between kernels. Prints the geometric mean of time in use / time with the other value: above 1, the other value is
faster here. Values are tried in turn, and the best of several calls counts; what is within the noise is not marked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fit import best

from pullback.bench.cases import OPS, Task, load_cases
from pullback.bench.data import make_data
from pullback.bench.ours import Ours
from pullback.cpu.engine import plan_cache
from pullback.cpu.engine.machine import machine
from pullback.ops import call
from pullback.registry import forget_choices

CASES = {
    "pool": ("max3s2-112", "2s2-112", "3s1-28", "3d-2s2", "3s2-56-L3", "global-7"),
    "conv": ("r50-1x1-up", "r50-3x3-s2", "stem7x7", "audio1d", "s2d2", "cifar-32", "tall-1x7"),
    "depthwise": ("mb-dw3x3-s1", "mb-dw3x3-s2", "grp32"),
    "winograd": ("r50-3x3-56", "r50-3x3-14", "r50-3x3-7", "unet3d", "odd-35x43"),
}
FACTORS = (0.5, 2.0)
ROUNDS, CALLS = 3, 3
NOISE = 1.03


@contextmanager
def value(family: str, name: str, new: Any) -> Iterator[None]:
    """Give a number another value wherever the plans of a family have it; plans and choices of the old one are forgotten."""
    modules = [
        module for at, module in sys.modules.items() if at.startswith(f"pullback.cpu.{family}.") and hasattr(module, name)
    ]
    old = [getattr(module, name) for module in modules]
    forget()
    for module in modules:
        setattr(module, name, new)
    try:
        yield
    finally:
        for module, before in zip(modules, old, strict=True):
            setattr(module, name, before)
        forget()


def forget() -> None:
    plan_cache.release_plans()
    call._remembered.clear()
    forget_choices()


def numbers(family: str) -> dict[str, int | float]:
    found = vars(import_module(f"pullback.cpu.{family}.tuning"))
    return {name: value for name, value in found.items() if name.isupper() and type(value) in (int, float)}


def calls(family: str, threads: int) -> Iterator[tuple[str, Callable[[], object]]]:
    cases = {case.name: case for case in load_cases()}
    for name in CASES[family]:
        case = cases[name]
        data = make_data(case, "float32")
        for op, (kind, *_) in OPS.items():
            if kind == case.kind and "pair" not in op:
                for layout in ("channels_last", "channels_first"):
                    yield f"{op} {name} {layout}", Ours().prepare(Task(op, case, "float32", layout), data, threads).run


def sweep(family: str, only: str, threads: int) -> None:
    runs = list(calls(family, threads))
    for name, used in numbers(family).items():
        if only not in name:
            continue
        others = [type(used)(used * factor) or 1 for factor in FACTORS]
        logs: dict[Any, list[float]] = {other: [] for other in others}
        for _, run in runs:
            times: dict[Any, list[float]] = {used: [], **{other: [] for other in others}}
            for _ in range(ROUNDS):
                for tried, taken in times.items():
                    with value(family, name, tried):
                        taken.append(best(run, CALLS))
            for other in others:
                logs[other].append(math.log(min(times[used]) / min(times[other])))
        shown = []
        for other in others:
            mean, most = math.exp(sum(logs[other]) / len(logs[other])), math.exp(max(logs[other]))
            shown.append(f"{other:>10.6g}: {mean:.3f} (at most {most:.2f}){' <' if mean > NOISE else '  '}")
        print(f"  {name:24} in use {used:>10.6g}   {'   '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=CASES, help="one family instead of all")
    parser.add_argument("--number", default="", help="numbers whose name holds this")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(f"{machine().cpu}, vectors of {machine().vector_bytes} bytes; float32, {options.threads} threads")
    for family in [options.family] if options.family else CASES:
        print(f"{family} (cpu/{family}/tuning.py), on {', '.join(CASES[family])}:")
        sweep(family, options.number, options.threads)


if __name__ == "__main__":
    main()
