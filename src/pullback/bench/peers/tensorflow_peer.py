"""TensorFlow on the CPU, channels last only: its forward and gradient kernels called directly, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from pullback.bench.cases import Case, Task
from pullback.bench.data import Data
from pullback.bench.peers.base import Prepared, UnsupportedError, package_missing, package_version
from pullback.rules import Array, Layout
from pullback.window import same_pads, span


class TensorflowPeer:
    """1-D cases run as 2-D ones of height 1, as tf.nn does. Its max-pool gradient takes x and y; it stands for all of ours."""

    name = "tensorflow"
    layouts: tuple[Layout, ...] = ("channels_last",)
    slow = False
    _threads: int | None = None

    def missing(self) -> str | None:
        return package_missing("tensorflow", "bench-tensorflow")

    def version(self) -> str:
        return package_version("tensorflow-cpu", "tensorflow")

    def close(self) -> None:
        pass

    def _import(self, threads: int) -> Any:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        tf: Any = import_module("tensorflow")
        if self._threads is None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.set_visible_devices([], "GPU")
            type(self)._threads = threads
        if self._threads != threads:
            raise UnsupportedError(f"TensorFlow already runs on {self._threads} threads in this process")
        return tf

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        tf = self._import(threads)
        lifted = data.lifted()
        run = _conv(tf, task, lifted) if task.case.kind == "conv" else _pool(tf, task, lifted)

        def result() -> tuple[Array, ...]:
            got = run()
            arrays = [np.asarray(a.numpy()) for a in (got if isinstance(got, tuple) else (got,))]
            if task.op == "max_pool_with_indices":
                return arrays[0], arrays[1] // task.case.channels_in
            if task.op == "conv_grad_filter" and _depthwise(task.case):
                return (np.swapaxes(arrays[0], -1, -2),)
            return tuple(arrays)

        return Prepared(run, result)


def _depthwise(case: Case) -> bool:
    return case.groups > 1 and case.groups == case.channels_in == case.channels_out


def _padding(case: Case, explicit: bool) -> dict[str, Any]:
    """The padding keywords of a kernel; UnsupportedError where it knows names only and no name fits."""
    w = case.window
    if not any(w.pad_low + w.pad_high):
        return {"padding": "VALID"}
    axes = zip(w.input_size, w.kernel, w.dilation, w.stride, w.pad_low, w.pad_high, strict=True)
    if all(same_pads(n, span(k, d), s) == (p, q) for n, k, d, s, p, q in axes):
        return {"padding": "SAME"}
    if not explicit:
        raise UnsupportedError(f"no padding of {case.pads} for this op, only SAME and VALID")
    pairs = [0, 0, *(p for pair in case.pads for p in pair), 0, 0]
    return {"padding": "EXPLICIT", "explicit_paddings": pairs}


def _pool(tf: Any, task: Task, data: Data) -> Callable[[], Any]:
    case, op, raw = data.case, task.op, tf.raw_ops
    volume = case.window.rank == 3
    if max(case.window.dilation) > 1:
        raise UnsupportedError("no dilated pooling")
    x, dy = tf.constant(data.x), tf.constant(data.dy)
    geometry = {"ksize": [1, *case.window.kernel, 1], "strides": [1, *case.window.stride, 1]}
    if op.startswith("avg"):
        geometry |= _padding(case, explicit=False)
        shape = tf.constant(case.input_shape, tf.int32)
        pool = raw.AvgPool3D if volume else raw.AvgPool
        forward = partial(pool, **{"input" if volume else "value": x}, **geometry)
        grad = partial(raw.AvgPool3DGrad if volume else raw.AvgPoolGrad, orig_input_shape=shape, grad=dy, **geometry)
        if op == "avg_pair":
            return lambda: (forward(), grad())
        return forward if op == "avg_pool" else grad
    if op == "max_pool_with_indices":
        if volume:
            raise UnsupportedError("no 3-D max pooling with indices")
        geometry |= _padding(case, explicit=False)
        return lambda: tuple(raw.MaxPoolWithArgmax(input=x, include_batch_in_index=False, **geometry))
    geometry |= _padding(case, explicit=not volume)
    forward = partial(raw.MaxPool3D if volume else raw.MaxPool, input=x, **geometry)
    if op == "max_pool":
        return forward
    max_grad = partial(raw.MaxPool3DGrad if volume else raw.MaxPoolGrad, orig_input=x, grad=dy, **geometry)
    if op == "max_pair":

        def max_pair() -> tuple[Any, Any]:
            y = forward()
            return y, max_grad(orig_output=y)

        return max_pair
    return partial(max_grad, orig_output=forward())


def _conv(tf: Any, task: Task, data: Data) -> Callable[[], Any]:
    case, raw = data.case, tf.raw_ops
    volume, depthwise = case.window.rank == 3, _depthwise(case)
    if case.groups > 1 and not depthwise:
        raise UnsupportedError("no grouped convolution gradients on the CPU")
    if max(case.window.dilation) > 1 and task.op != "conv":
        raise UnsupportedError("no dilated convolution gradients on the CPU")
    kernel = np.ascontiguousarray(np.swapaxes(data.filter, -1, -2)) if depthwise else data.filter
    x, dy, f = tf.constant(data.x), tf.constant(data.dy), tf.constant(kernel)
    x_shape, f_shape = tf.constant(x.shape, tf.int32), tf.constant(f.shape, tf.int32)
    geometry = {
        "strides": [1, *case.window.stride, 1],
        "dilations": [1, *case.window.dilation, 1],
        **_padding(case, explicit=not volume),
    }
    names = ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2") if volume else _planar_names(depthwise)
    forward, grad_input, grad_filter = (getattr(raw, name) for name in names)
    if task.op == "conv":
        return partial(forward, input=x, filter=f, **geometry)
    if task.op == "conv_grad_input":
        return partial(grad_input, input_sizes=x_shape, filter=f, out_backprop=dy, **geometry)
    return partial(grad_filter, input=x, filter_sizes=f_shape, out_backprop=dy, **geometry)


def _planar_names(depthwise: bool) -> tuple[str, str, str]:
    stem = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    return stem, f"{stem}BackpropInput", f"{stem}BackpropFilter"
