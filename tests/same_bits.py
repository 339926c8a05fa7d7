"""Hashes of what every kernel makes, for several numbers of threads: run in processes of their own, on one core and on two.

python tests/same_bits.py CORES COUNT,COUNT,... [PROBLEMS]     random problems for each op beside the fixed ones
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import ml_dtypes  # noqa: F401 (bfloat16)
import numpy as np
from cpu_calls import LAYOUTS, as_tuple, pool_arguments, reals, shaped

import pullback as pb
from pullback import training_kernels as training
from pullback.cpu.engine import threads
from pullback.cpu.kernel_list import TABLES
from pullback.cpu.machine_code.levels import has_pairs
from pullback.registry import kernels_for

Call = Callable[[], Any]

# Batch, sizes, channels in and out, groups, window, and other options: small ones of one piece, and such that are cut into many.
CONVS: dict[str, tuple[Any, ...]] = {
    "small": (1, (9, 11), 5, 7, 1, (3, 3), {}),
    "dense": (4, (33, 35), 20, 33, 1, (3, 3), {}),
    "strided": (4, (33, 31), 24, 40, 1, (3, 3), {"stride": 2}),
    "few channels": (2, (50, 52), 3, 20, 1, (5, 5), {}),
    "one cell": (3, (40, 40), 32, 40, 1, (1, 1), {}),
    "small one cell": (1, (5, 5), 8, 8, 1, (1, 1), {}),
    "depthwise": (2, (56, 56), 32, 32, 32, (3, 3), {}),
    "small planes": (8, (7, 7), 96, 96, 96, (3, 3), {}),
    "small depthwise": (1, (7, 9), 16, 16, 16, (3, 3), {}),
    "grouped": (4, (30, 34), 24, 24, 6, (3, 3), {}),
    "small groups": (1, (6, 5), 6, 6, 3, (2, 2), {}),
    "one axis": (1, (5000,), 4, 4, 4, (31,), {}),
    "three axes": (2, (10, 12, 14), 12, 20, 1, (3, 3, 3), {}),
    "wide": (4, (28, 28), 32, 64, 1, (3, 3), {}),
    "deep": (4, (7, 7), 144, 160, 1, (3, 3), {}),
    "cropped": (2, (41, 32), 16, 24, 1, (3, 3), {"padding": ((0, -1), (0, -2)), "stride": 2, "rounding": "ceil"}),
}
PAIRED = ("small", "deep", "strided")  # also in bfloat16
POOLS: dict[str, tuple[Any, ...]] = {
    "small": (1, 3, (8, 9), (3, 2), {}),
    "overlapping": (3, 24, (33, 35), (3, 2), {"stride": (2, 1), "padding": "same"}),
    "apart": (3, 20, (48, 40), (2, 2), {}),
    "whole": (16, 96, (9, 7), (9, 7), {}),
    "large windows": (2, 16, (30, 32), (7, 7), {"stride": 1, "padding": 3}),
    "cropped": (2, 40, (41, 32), (3, 3), {"padding": ((0, -1), (0, -2)), "stride": 2, "rounding": "ceil"}),
}


def on_kernel(name: str, op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    with pb.kernel(name):
        return getattr(pb, op)(*arguments, **keywords)


def by_name(op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[tuple[str, Call]]:
    """The call on every kernel of the op."""
    for kernel in kernels_for(op, "cpu"):
        if kernel.backend == "cpu":
            yield f"{op}/{kernel.name}", partial(on_kernel, kernel.name, op, arguments, keywords)


def convolutions() -> Iterator[tuple[str, Call]]:
    for name, (batch, size, c, m, groups, window, options) in CONVS.items():
        for layout in LAYOUTS:
            x, last = reals(shaped(layout, batch, c, *size)), layout == "channels_last"
            f = reals((*window, c // groups, m) if last else (m, c // groups, *window), 1)
            keywords = {"padding": "same", **options, "groups": groups, "layout": layout}
            with pb.backend("cpu"):
                dy = reals(pb.conv(x, f, **keywords).shape, 2)
            calls = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}
            for op, arguments in calls.items():
                for kernel, call in by_name(op, arguments, keywords):
                    yield f"{kernel} {name} {layout}", call
                if name in PAIRED:
                    halved = tuple(a.astype("bfloat16") if isinstance(a, np.ndarray) else a for a in arguments)
                    yield f"{op}/pairs {name} {layout}", partial(on_kernel, "pairs", op, halved, keywords)


def pools() -> Iterator[tuple[str, Call]]:
    for name, (batch, channels, size, window, options) in POOLS.items():
        for layout in LAYOUTS:
            x = reals(shaped(layout, batch, channels, *size))
            keywords = {**options, "layout": layout}
            calls = pool_arguments(x, 1, window, **keywords)
            calls["max_pool_jvp"] = ("max_pool_jvp", (reals(x.shape, 3), x, window), keywords)
            for form, (op, arguments, all_keywords) in calls.items():
                for kernel, call in by_name(op, arguments, all_keywords):
                    yield f"{kernel} {form} {name} {layout}", call
    x, dy = reals((4, 50, 47, 24)), reals((4, 6, 5, 24), 1)
    adaptive = {
        "max_pool": (x, (6, 5)), "max_pool_grad": (dy, x), "max_pool_jvp": (x, x, (6, 5)), "avg_pool": (x, (6, 5)),
        "avg_pool_grad": (dy, x.shape),
    }  # fmt: skip
    for op, arguments in adaptive.items():
        for kernel, call in by_name(f"adaptive_{op}", arguments, {"layout": "channels_last"}):
            yield f"{kernel} adaptive", call


def passes() -> Iterator[tuple[str, Call]]:
    """What has no name in the registry: batch normalization and passes over flat memory."""
    for shape in ((2, 5, 6, 7), (8, 48, 40, 41)):
        for layout in LAYOUTS:
            x, dy = (reals(shape, seed) for seed in (0, 1))
            if layout == "channels_last":
                x, dy = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, dy))
            scale, bias = reals(shape[1:2], 2), reals(shape[1:2], 3)
            y, mean, std = training.batch_norm_train(x, scale, bias, 1e-5, True)
            made: dict[str, Call] = {
                "batch_norm_train": partial(training.batch_norm_train, x, scale, bias, 1e-5, True, x),
                "batch_norm_grad": partial(training.batch_norm_grad, dy, x, scale, mean, std, y),
                "batch_statistics": partial(training.batch_statistics, x),
                "relu": partial(training.relu, x),
                "relu_grad": partial(training.relu_grad, dy, x),
                "add_relu": partial(training.add_relu, dy, x),
                "clip": partial(training.clip, x, -0.5, 0.5),
                "sum_of_squares": partial(training.sum_of_squares, x),
            }
            for name, call in made.items():
                yield f"{name} {shape} {layout}", call


def random_problems(count: int) -> Iterator[tuple[str, Call]]:
    """Of tests/cpu/test_by_name.py."""
    if not count:
        return
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpu"))
    import test_by_name as drawn

    drawn.PROBLEMS = count
    for op in (*drawn.CONVS, *drawn.MAXIMA, *drawn.MEANS):
        for dtype in ("float32", "float64", "float16"):
            for number, (arguments, keywords) in enumerate(drawn.random_calls(op, dtype)):
                for kernel, call in by_name(op, arguments, keywords):
                    yield f"{kernel} {dtype} {number}", call


def digest(result: Any) -> str:
    made = hashlib.sha256()
    for array in as_tuple(result):
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()[:16]


def main(cores: int, counts: list[int], problems: int = 0) -> None:
    """Prints {call: {threads: hash}}, the most pieces of a job of each kernel, and which kernels have not run."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    real, pieces = threads.run, [0]

    def run(function: int, arguments: int, count: int, *rest: Any) -> None:
        pieces[0] = max(pieces[0], count)
        real(function, arguments, count, *rest)

    threads.run = run  # type: ignore[assignment]
    found: dict[str, dict[int, str]] = {}
    cut: dict[str, int] = {}
    with pb.backend("cpu"):
        for name, call in chain(convolutions(), pools(), passes(), random_problems(problems)):
            pieces[0] = 0
            with suppress(pb.KernelError):
                for count in counts:
                    with pb.threads(count):
                        found.setdefault(name, {})[count] = digest(call())
                kernel = name.split()[0]
                cut[kernel] = max(cut.get(kernel, 0), pieces[0])
    absent = () if has_pairs() else ("pairs",)
    missing = {f"{op}/{row.name}" for op, table in TABLES.items() for row in table if row.name not in absent} - set(cut)
    print(json.dumps({"hashes": found, "pieces": cut, "missing": sorted(missing)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(count) for count in sys.argv[2].split(",")], *map(int, sys.argv[3:]))
