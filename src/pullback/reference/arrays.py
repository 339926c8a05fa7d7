"""Views that let every reference kernel speak one language: channels last, float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pullback.problem import Problem
from pullback.rules import Array, Layout

Float64 = npt.NDArray[np.float64]


def channels_last(layout: Layout, array: Array) -> Array:
    """View with the channel axis last."""
    return array if layout == "channels_last" else np.moveaxis(array, 1, -1)


def in_layout(layout: Layout, array: Array) -> Array:
    """Channels-last result as a contiguous array of the problem's layout."""
    return np.ascontiguousarray(array if layout == "channels_last" else np.moveaxis(array, -1, 1))


def load(problem: Problem, array: Array) -> Float64:
    """An activation as float64, channels last."""
    return channels_last(problem.layout, array).astype(np.float64)


def store(problem: Problem, array: Array) -> Array:
    """A channels-last float64 result rounded once to the problem's dtype and layout."""
    with np.errstate(over="ignore", invalid="ignore"):
        return in_layout(problem.layout, array.astype(problem.dtype))


def zeros_like_input(problem: Problem) -> Float64:
    return np.zeros((problem.batch, *problem.window.input_size, problem.channels_in))


def zeros_like_output(problem: Problem) -> Float64:
    return np.zeros((problem.batch, *problem.window.output_size, problem.channels_out))
