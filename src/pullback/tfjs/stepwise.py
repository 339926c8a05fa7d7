"""TF.js's forward convolution as it is stored: every product is added to the output array itself, so every step rounds.

float32 outputs round at each step (reproduced in quirks), int32 outputs truncate at each step (a rule, kept always).
"""

from __future__ import annotations

import numpy as np

from pullback.problem import Problem
from pullback.reference.arrays import Float64, channels_last, in_layout
from pullback.rules import Array
from pullback.tfjs.tensors import FLOAT32, to_int32
from pullback.window import axis_slices


def _store_step(dtype: np.dtype[np.generic], values: Float64) -> Float64:
    if dtype == FLOAT32:
        return values.astype(np.float32).astype(np.float64)
    return to_int32(values)


def conv_step_by_step(problem: Problem, x: Array, filter: Array) -> Array:
    """Taps row-major, then input channels: TF.js's order of additions for each output; result in x's dtype."""
    window, groups = problem.window, problem.groups
    a = channels_last(problem.layout, x).astype(np.float64)
    f = (filter if problem.layout == "channels_last" else np.moveaxis(filter, (0, 1), (-1, -2))).astype(np.float64)
    per_group = problem.channels_in // groups
    a = a.reshape(*a.shape[:-1], groups, per_group)
    f = f.reshape(window.tap_count, per_group, groups, problem.channels_out // groups)
    y = np.zeros((problem.batch, *window.output_size, groups, problem.channels_out // groups))
    for t, tap in enumerate(window.taps()):
        outs, ins = (axis_slices(True, s) for s in window.tap_slices(tap))
        for channel in range(per_group):
            with np.errstate(over="ignore", invalid="ignore"):
                step = y[outs] + a[ins][..., channel, None] * f[t, channel]
                y[outs] = _store_step(x.dtype, step)
    flat = y.reshape(*y.shape[:-2], problem.channels_out)
    return in_layout(problem.layout, flat.astype(x.dtype))
