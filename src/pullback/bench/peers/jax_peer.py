"""JAX on the CPU: forward ops and vector-Jacobian products, compiled ahead of the timing, in both layouts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from pullback.bench.cases import LAYOUTS, Task
from pullback.bench.data import (
    Data,
    filter_to_channels_last,
    filter_to_layout,
    to_channels_last,
    to_layout,
)
from pullback.bench.peers.base import Prepared, UnsupportedError, package_missing, package_version
from pullback.rules import Array

SPATIAL = "DHW"


class JaxPeer:
    """Its only max-pool gradient is from x, and stands for all three of ours."""

    name = "jax"
    layouts = LAYOUTS
    slow = False
    _threads: int | None = None

    def missing(self) -> str | None:
        return package_missing("jax", "bench")

    def version(self) -> str:
        return package_version("jax")

    def close(self) -> None:
        pass

    def _import(self, threads: int) -> Any:
        """JAX with that many threads; they can only be set before its first use."""
        if self._threads is None and "jax" in sys.modules:
            raise UnsupportedError("JAX was imported before the benchmark could set its thread count")
        if self._threads is None:
            os.environ["NPROC"] = str(threads)
            os.environ["JAX_PLATFORMS"] = "cpu"
            eigen = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'} intra_op_parallelism_threads={threads}"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {eigen}".strip()
            type(self)._threads = threads
        if self._threads != threads:
            raise UnsupportedError(f"JAX already runs on {self._threads} threads in this process")
        return import_module("jax")

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        jax = self._import(threads)
        jax.config.update("jax_enable_x64", task.dtype == "float64")
        x, dy = (jax.device_put(to_layout(task.layout, a)) for a in (data.x, data.dy))
        if task.case.kind == "conv":
            f = jax.device_put(filter_to_layout(task.layout, data.filter))
            function, arguments = _conv(jax, task, x, f, dy)
        else:
            function, arguments = _pool(jax, task, x, dy)
        compiled = jax.jit(function).lower(*arguments).compile()

        def run() -> Any:
            return jax.block_until_ready(compiled(*arguments))

        def result() -> tuple[Array, ...]:
            got = run()
            arrays = [np.asarray(a) for a in (got if isinstance(got, (tuple, list)) else (got,))]
            if task.op == "conv_grad_filter":
                return (filter_to_channels_last(task.layout, arrays[0]),)
            return tuple(to_channels_last(task.layout, array) for array in arrays)

        return Prepared(run, result)


def _conv(jax: Any, task: Task, x: Any, f: Any, dy: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    window = task.case.window
    axes = SPATIAL[-window.rank :]
    letters = (
        (f"N{axes}C", f"{axes}IO", f"N{axes}C") if task.layout == "channels_last" else (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    )
    conv = partial(
        jax.lax.conv_general_dilated,
        window_strides=window.stride,
        padding=task.case.pads,
        rhs_dilation=window.dilation,
        dimension_numbers=letters,
        feature_group_count=task.case.groups,
    )
    if task.op == "conv":
        return conv, (x, f)
    if task.op == "conv_grad_input":
        # The forward is linear in x, so its value is never needed and the compiler drops it.
        return lambda d, w: jax.linear_transpose(lambda a: conv(a, w), x)(d)[0], (dy, f)
    return lambda d, a: jax.linear_transpose(lambda w: conv(a, w), f)(d)[0], (dy, x)


def _pool(jax: Any, task: Task, x: Any, dy: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    window, last = task.case.window, task.layout == "channels_last"

    def full(values: Any, other: Any) -> tuple[Any, ...]:
        return (other, *values, other) if last else (other, other, *values)

    pads = full(task.case.pads, (0, 0))
    geometry = (full(window.kernel, 1), full(window.stride, 1), pads, None, full(window.dilation, 1))
    counts = window.divisor("valid")[None, ..., None] if last else window.divisor("valid")[None, None]
    divisors = counts.astype(x.dtype)

    def max_pool(a: Any) -> Any:
        return jax.lax.reduce_window(a, -np.inf, jax.lax.max, *geometry)

    def avg_pool(a: Any) -> Any:
        return jax.lax.reduce_window(a, 0.0, jax.lax.add, *geometry) / divisors

    def pair(pool: Any, a: Any, d: Any) -> Any:
        y, back = jax.vjp(pool, a)
        return y, back(d)[0]

    if task.op == "max_pool_with_indices":
        raise UnsupportedError("no max pooling with indices")
    if task.op == "max_pool":
        return max_pool, (x,)
    if task.op == "avg_pool":
        return avg_pool, (x,)
    if task.op == "avg_pool_grad":
        return lambda d: jax.linear_transpose(avg_pool, x)(d)[0], (dy,)
    if task.op == "avg_pair":
        return partial(pair, avg_pool), (x, dy)
    if task.op == "max_pair":
        return partial(pair, max_pool), (x, dy)
    return lambda a, d: pair(max_pool, a, d)[1], (x, dy)
