"""Planted defects, which prove that the fuzzer finds what it is there to find. A child process takes one by its name."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

import pullback as pb
from pullback.reference import conv, pool


def _plant(op: str, run: Any, before: str) -> None:
    """First in its list, for every problem: no other kernel need be compiled to find it."""
    pb.register_kernel(op, "cpu", "planted", lambda problem: None, run, before=before)


def wrong() -> None:
    """A convolution with a stride over rows of five cells or more, of two channels or more, is half as large as it should be."""

    def run(problem: Any, x: Any, filter: Any) -> Any:
        y = conv.conv(problem, x, filter)
        if problem.window.stride[-1] > 1 and problem.window.input_size[-1] >= 5 and problem.channels_in > 1:
            y *= y.dtype.type(0.5)
        return y

    _plant("conv", run, "slide")


def crash() -> None:
    """A read from address 0, where padding counts."""

    def run(problem: Any, x: Any) -> Any:
        if problem.divisor == "padded":
            ctypes.string_at(0)
        return pool.avg_pool(problem, x)

    _plant("avg_pool", run, "whole")


def hang() -> None:
    """No answer, where there is padding."""

    def run(problem: Any, x: Any) -> Any:
        while problem.window.pad_low[-1] > 0:
            time.sleep(0.1)
        return pool.avg_pool(problem, x)

    _plant("avg_pool", run, "whole")


def writes_input() -> None:
    """dy is another afterwards, and the result right."""

    def run(problem: Any, dy: Any) -> Any:
        dx = pool.avg_pool_grad(problem, dy)
        if dy.flags.writeable and dy.size:
            dy.flat[0] += 1
        return dx

    _plant("avg_pool_grad", run, "whole")


def depends_on_threads() -> None:
    """A last bit is another with more than two threads."""

    def run(problem: Any, dy: Any) -> Any:
        dx = pool.avg_pool_grad(problem, dy)
        return np.nextafter(dx, dx + 1) if pb.get_num_threads() > 2 and dx.dtype == np.float64 else dx

    _plant("avg_pool_grad", run, "whole")


def wrong_error() -> None:
    """An exception that no caller expects."""

    def run(problem: Any, x: Any) -> Any:
        return {}["missing"]

    _plant("avg_pool", run, "whole")


def wild_write() -> None:
    """One number past the end of the result, which only guarded memory shows."""

    def run(problem: Any, dy: Any) -> Any:
        dx = np.empty(problem.input_shape, problem.dtype)
        dx[...] = pool.avg_pool_grad(problem, dy)
        ctypes.memset(dx.ctypes.data + dx.nbytes, 0, 1)
        return dx

    _plant("avg_pool_grad", run, "whole")
