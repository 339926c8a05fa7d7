"""Compiling ahead: small problems that between them ask for every kernel variant which a plan can ask for.

No variant of an op is named here. Each task plans its problems on every cpu kernel that would take them, without running any, so
what is compiled is what the plans themselves want; a new kernel is warmed by being registered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.conv import transpose
from pullback.cpu.conv.filter_order import IN_LAST, TAPS_FIRST, TAPS_LAST, memory_axes
from pullback.cpu.engine.machine import machine
from pullback.cpu.machine_code import disk_cache, dry_run, find, shipped
from pullback.cpu.machine_code.training_warmup import training_variants
from pullback.cpu.machine_code.variants import Variant
from pullback.ops.explain import PREPARE
from pullback.problem import Problem
from pullback.registry import CPU, kernels_for
from pullback.rules import FLOAT_NAMES, PUBLIC_NAN_RULES, TIES, Array, Layout, WinnerRule

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
CONV_TAPS: tuple[tuple[int, ...], ...] = ((3,), (1, 1), (3, 3), (5, 5), (3, 3, 3))


@dataclass(frozen=True)
class Task:
    """One op on one dtype and winner rule, whose problems are planned together."""

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


def _conv_shapes() -> Iterator[tuple[tuple[int, int, int], tuple[int, ...], int]]:
    """(channels in and out and groups), taps, stride."""
    yield from product(CONV_CHANNELS, CONV_TAPS, (1, 2))
    yield from product(((32, 32, 32),), ((7, 7),), (1, 2))  # the largest window that has machine code of its own
    lanes = machine().vector_bytes // 4
    for vectors, taps in product(range(1, 6), ((3,), (3, 3))):  # Winograd's tiles are as wide as the channels fill vectors
        yield (vectors * lanes, vectors * lanes, 1), taps, 1
    for few in range(1, lanes // 2 + 1):  # filter gradients of narrow groups hold a row of sums for each channel of one side
        yield (2 * max(2, few), 2 * few, 2), (3,), 1
        yield (2 * few, 2 * few + 2, 2), (3,), 1


def _conv_calls(task: Task, value: float) -> Iterator[tuple[Any, ...]]:
    """(problem, arrays...) of a convolution's small problems, with the filter in every order that is read in place.

    value: of all weights and gradients. Those that are not finite ask for kernels of their own.
    """
    dtype = dtype_of(task.dtype)
    orders = (TAPS_FIRST, TAPS_LAST, IN_LAST) if task.op != "conv_grad_filter" else (None,)
    layouts: tuple[Layout, ...] = ("channels_last", "channels_first")
    for ((c_in, c_out, groups), taps, stride), layout, order in product(_conv_shapes(), layouts, orders):
        size = (24,) * len(taps) if len(taps) < 3 else (6, 12, 12)
        last = layout == "channels_last"
        x = np.zeros((1, *size, c_in) if last else (1, c_in, *size), dtype)
        f = np.full((*taps, c_in // groups, c_out) if last else (c_out, c_in // groups, *taps), value, dtype)
        if order is not None:
            axes = memory_axes(layout, len(taps), order)
            f = np.ascontiguousarray(f.transpose(axes)).transpose(np.argsort(axes))
        options = {"stride": stride, "padding": "same", "groups": groups, "layout": layout}
        dy = np.full(PREPARE["conv"](x, f, **options)[0].output_shape, value, dtype)
        arguments = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}
        yield PREPARE[task.op](*arguments[task.op], **options)


def _calls(task: Task, value: float) -> Iterator[tuple[Any, ...]]:
    """(problem, arrays...) of a task's small problems."""
    if task.op.startswith("conv"):
        yield from _conv_calls(task, value)
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


POOL = (Variant("engine.threads", "lead"), Variant("engine.threads", "follow"), Variant("engine.recycling", "shelf"))
ENGINE = (
    *POOL,
    Variant("engine.team", "team"),
    Variant("engine.roofs", "copy"),
    Variant("engine.roofs", "fill"),
    Variant("engine.roofs", "multiply_add"),
    Variant("engine.roofs", "multiply_add", "float64"),
)


def beside_ops(dtypes: Sequence[str]) -> list[Variant]:
    """What no plan of an op asks for: the engine's own, the transposes of tensors that come in another memory format, and the
    kernels of training steps."""
    transposes = (Variant("conv.transpose", "transpose", dtype) for dtype in dtypes if dtype in transpose.NATIVE)
    return [*ENGINE, *transposes, *training_variants(dtypes)]


def variants_of(task: Task) -> list[Variant]:
    """What the kernels that can run the problems of a task ask for, whether or not they pay."""
    found: dict[Variant, None] = {}
    for faulty in (False, True):
        with dry_run.dry_run(faulty) as run, np.errstate(all="ignore"):
            for problem, *arrays in _calls(task, run.result):
                for kernel in kernels_for(problem.op, CPU):
                    if kernel.backend == CPU and kernel.can(problem) is None:
                        kernel.run(problem, *arrays)
        found.update(run.wanted)
    return list(found)


def wanted(dtypes: Sequence[str] = FLOAT_NAMES, *, wide: bool = False) -> list[Variant]:
    """All variants that calls with these dtypes can ask for."""
    found = dict.fromkeys(beside_ops(dtypes))
    for task in tasks(dtypes, wide=wide):
        found.update(dict.fromkeys(variants_of(task)))
    return list(found)


def missing(variants: Sequence[Variant]) -> list[Variant]:
    """Those that are neither shipped nor kept on disk."""
    return [variant for variant in variants if shipped.find(variant) is None and disk_cache.read(variant) is None]


MOST_TOGETHER = 8


def groups(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Variants that share parts, for one process after the other: a part is compiled once in each. Large groups first."""
    found: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        found.setdefault((variant.module, variant.dtype), []).append(variant)
    cut = [group[i : i + MOST_TOGETHER] for group in found.values() for i in range(0, len(group), MOST_TOGETHER)]
    return sorted(cut, key=len, reverse=True)


def compile_group(variants: Sequence[Variant]) -> list[str]:
    """Compile variants and keep them; what they are called."""
    for variant in variants:
        find.compile_and_keep(variant)
    return [str(variant) for variant in variants]
