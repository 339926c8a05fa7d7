"""Compiling ahead: small problems that between them ask for every kernel variant which a plan can ask for.

Nothing here names a variant. Each task runs its problems on every cpu kernel that would take them, so what is compiled is what the
plans themselves want; a new kernel is warmed by being registered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.engine import compiler, threads
from pullback.ops.explain import PREPARE
from pullback.problem import Problem
from pullback.registry import CPU, kernels_for
from pullback.rules import FLOAT_NAMES, PUBLIC_NAN_RULES, TIES, Array, WinnerRule

PUBLIC_RULES = tuple(WinnerRule(ties, nan) for ties, nan in product(TIES, PUBLIC_NAN_RULES))
FLOORED = WinnerRule("first", "ignore", above=-math.inf)  # TF.js in 2-D
LEADING = WinnerRule("first", "leading")  # ONNX Runtime's forward

RULES: dict[str, tuple[WinnerRule | None, ...]] = {
    "max_pool": (*PUBLIC_RULES, FLOORED, LEADING),
    "max_pool_grad": (*PUBLIC_RULES, FLOORED),
    "max_pool_grad_from_winners": (WinnerRule(),),
    "max_pool_grad_from_indices": (None,),
    "avg_pool": (None,),
    "avg_pool_grad": (None,),
    "conv": (None,),
    "conv_grad_input": (None,),
    "conv_grad_filter": (None,),
}

# Winners are numbered in one byte up to 255 taps; the larger windows ask for kernels of their own.
SMALL_WINDOWS: tuple[tuple[int, int], ...] = ((2, 2), (3, 3))
WIDE_WINDOWS: tuple[tuple[int, int], ...] = ((16, 17), (256, 257))
WHOLE = {"padding": 0}  # windows as large as the image
GEOMETRIES: tuple[dict[str, Any], ...] = (*({"stride": s} for s in (1, 2, 3, 4)), {"stride": 1, "dilation": 2}, WHOLE)

# Few and many channels: some kernels take only what fills a vector.
LAYOUTS = (("channels_last", 1), ("channels_last", 64), ("channels_first", 3))

# Convolutions: channels in and out and groups, for kernels over many channels, over few, and over groups.
CONV_CHANNELS = ((64, 64, 1), (3, 20, 1), (20, 3, 1), (32, 32, 32), (16, 32, 16), (32, 32, 8))
CONV_KERNELS: tuple[tuple[int, ...], ...] = ((3,), (1, 1), (3, 3), (5, 5), (3, 3, 3))


@dataclass(frozen=True)
class Task:
    """One op on one dtype and winner rule: a few kernels, compiled together since they share their variants with no other task."""

    op: str
    dtype: str
    rule: WinnerRule | None
    wide: bool

    def __str__(self) -> str:
        rule = self.rule
        named = [rule.ties, rule.nan, *(["above"] if rule.above is not None else [])] if rule else []
        return " ".join([self.op, self.dtype, *named])


def dtype_of(name: str) -> np.dtype[Any] | None:
    """A dtype by name; None for bfloat16 where ml_dtypes is not installed, since no array can have it then."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def tasks(dtypes: Sequence[str] = FLOAT_NAMES, *, wide: bool = False) -> list[Task]:
    """Everything to compile for these dtypes; `wide` adds the windows of more than 255 taps."""
    return [
        Task(op, dtype, rule, wide)
        for dtype, (op, rules) in product(dtypes, RULES.items())
        if dtype_of(dtype) is not None and any(kernel.backend == CPU for kernel in kernels_for(op, CPU))
        for rule in rules
    ]


def _conv_calls(task: Task) -> Iterator[tuple[Any, ...]]:
    """(problem, arrays...) of a convolution's small problems."""
    dtype = dtype_of(task.dtype)
    layouts = ("channels_last", "channels_first")
    for (c_in, c_out, groups), kernel, stride, layout in product(CONV_CHANNELS, CONV_KERNELS, (1, 2), layouts):
        size = (24,) * len(kernel) if len(kernel) < 3 else (6, 12, 12)
        last = layout == "channels_last"
        x = np.zeros((1, *size, c_in) if last else (1, c_in, *size), dtype)
        f = np.zeros((*kernel, c_in // groups, c_out) if last else (c_out, c_in // groups, *kernel), dtype)
        options = {"stride": stride, "padding": "same", "groups": groups, "layout": layout}
        dy = np.zeros(PREPARE["conv"](x, f, **options)[0].output_shape, dtype)
        # Numbers that are not finite ask for kernels of their own.
        for value in (0.0, np.inf):
            odd_f, odd_dy = np.full_like(f, value), np.full_like(dy, value)
            arguments = {"conv": (x, odd_f), "conv_grad_input": (dy, odd_f, x.shape), "conv_grad_filter": (odd_dy, x, f.shape)}
            yield PREPARE[task.op](*arguments[task.op], **options)


def _calls(task: Task) -> Iterator[tuple[Any, ...]]:
    """(problem, arrays...) of a task's small problems."""
    if task.op.startswith("conv"):
        yield from _conv_calls(task)
        return
    dtype = dtype_of(task.dtype)
    for window in (*SMALL_WINDOWS, *(WIDE_WINDOWS if task.wide and task.rule else ())):
        for geometry, (layout, channels) in product(GEOMETRIES, LAYOUTS):
            options = {"window": window, "layout": layout, "padding": "same", **geometry}
            size = window if geometry is WHOLE else tuple(max(5, taps // 8) for taps in window)
            shape = (1, *size, channels) if layout == "channels_last" else (1, channels, *size)
            x = np.zeros(shape, dtype)
            forward = PREPARE["max_pool"](x, **options)[0]
            dy = np.zeros(forward.output_shape, dtype)
            if task.op == "max_pool":
                for wanted in ({}, {"return_indices": True}, {"return_winners": True}):
                    yield _ruled(task, PREPARE[task.op](x, **options, **wanted))
            elif task.op == "max_pool_grad_from_winners":
                winners = np.zeros(dy.shape, forward.winner_dtype)
                yield PREPARE[task.op](dy, winners, x.shape, **options)
            elif task.op == "max_pool_grad_from_indices":
                yield PREPARE[task.op](dy, np.zeros(dy.shape, np.int64), x.shape, layout=layout)
            elif task.op == "max_pool_grad":
                yield _ruled(task, PREPARE[task.op](dy, x, **options))
            else:
                yield PREPARE[task.op](*((x,) if task.op == "avg_pool" else (dy, x.shape)), **options)


def _ruled(task: Task, call: tuple[Any, ...]) -> tuple[Problem, *tuple[Array, ...]]:
    """The call under the task's rule, which may be one that only a dialect can name."""
    return replace(call[0], winner=task.rule), *call[1:]


def run(task: Task) -> int:
    """Run a task; how many kernels it had to compile."""
    before = compiler.compilations
    for kernel_name in ("lead", "follow"):
        compiler.code(compiler.Variant("engine.threads", kernel_name))
    with threads.threads(1):
        for problem, *arrays in _calls(task):
            for kernel in kernels_for(problem.op, CPU):
                if kernel.backend == CPU and kernel.verdict(problem).reason is None:
                    kernel.run(problem, *arrays)
    return compiler.compilations - before
