"""How wrong a result is: by norm, and by cell in units of the rounding that a plain sum may have."""

from __future__ import annotations

import math

import numpy as np

from pullback.bench.cases import Case, Task
from pullback.bench.data import Expected
from pullback.rules import Array

EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
TOLERANCE_EPS = {"pool": 8, "conv": 168}  # in units of the dtype's epsilon; 168 is 2e-5 in float32, room for Winograd


def is_half(dtype: str) -> bool:
    return EPS[dtype] > EPS["float32"]


def tolerance(case: Case, dtype: str) -> float:
    """Largest norm-wise error that still counts as right."""
    return EPS[dtype] * TOLERANCE_EPS["pool" if is_half(dtype) else case.kind]


def error(got: tuple[Array, ...], want: tuple[Array, ...]) -> float:
    """Norm-wise relative error |got - want| / |want|, the worst of several results; indices must be equal."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if g.size != w.size:
            raise ValueError(f"a result of {g.shape} where {w.shape} is right")
        g = g.reshape(w.shape)  # a lifted 1-D case has one more axis of size 1
        if w.dtype.kind == "i":
            worst = max(worst, float((g != w).mean()))
            continue
        size = float(np.linalg.norm(w)) or 1.0
        off = float(np.linalg.norm(g.astype(np.float64) - w)) / size
        worst = max(worst, off if math.isfinite(off) else math.inf)
    return worst


def terms(task: Task) -> int:
    """How many products one result of a convolution sums at most."""
    case = task.case
    if task.op == "conv_grad_filter":
        return case.batch * math.prod(case.window.output_size)
    return case.window.tap_count * (case.channels_in if task.op == "conv" else case.channels_out) // case.groups


def cell_error(task: Task, got: tuple[Array, ...], expected: Expected) -> float | None:
    """The largest |error| of a convolution's results over n * eps * (|dy| * |w|), n products summed; None for pooling.

    At most 1 for plain sums in any order. A half-precision result, summed in float32, may be rounded once more.
    """
    if task.case.kind == "pool":
        return None
    [want], [scale] = expected.of(task.op), expected.absolute.of(task.op)
    bound = terms(task) * min(EPS[task.dtype], EPS["float32"]) * scale
    if is_half(task.dtype):
        bound = bound + EPS[task.dtype] * np.abs(want)
    off = np.abs(got[0].reshape(want.shape).astype(np.float64) - want)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(off == 0, 0.0, off / bound)
    worst = float(shares.max(initial=0.0))
    return worst if math.isfinite(worst) else math.inf
