"""ONNX Runtime's training build (1.19.2, the last with gradient kernels), channels first, in an environment of its own."""

from __future__ import annotations

import math
from pathlib import Path

from pullback.bench.cases import Task
from pullback.bench.data import (
    Data,
    filter_to_channels_last,
    filter_to_layout,
    to_channels_last,
    to_layout,
)
from pullback.bench.peers.base import Prepared, UnsupportedError
from pullback.bench.peers.helper import Helper, peers_folder
from pullback.rules import Array, Layout


class OrtPeer:
    """MaxPoolGrad (from saved indices), AveragePoolGrad and ConvGrad nodes in a graph of their own, outputs bound."""

    name = "ort"
    layouts: tuple[Layout, ...] = ("channels_first",)
    slow = True

    def __init__(self) -> None:
        self.python = peers_folder() / "ort" / "bin" / "python"
        self.helper = Helper("ONNX Runtime", [str(self.python), str(Path(__file__).with_name("ort_helper.py"))], {})

    def missing(self) -> str | None:
        return None if self.python.exists() else f"no {self.python}: make peers"

    def version(self) -> str:
        found = sorted(self.python.parents[1].glob("lib/*/site-packages/onnxruntime_training_cpu-*.dist-info"))
        return found[0].name.split("-")[1].removesuffix(".dist") if found else "unknown"

    def close(self) -> None:
        self.helper.close()

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        if task.dtype != "float32":
            raise UnsupportedError("its gradient kernels take float32 only")
        if task.case.kind == "pool" and max(task.case.window.dilation) > 1:
            raise UnsupportedError("no gradients of dilated pooling")
        arrays = {"x": to_layout("channels_first", data.x), "dy": to_layout("channels_first", data.dy)}
        if task.case.kind == "conv":
            arrays["filter"] = filter_to_layout("channels_first", data.filter)
        self.helper.prepare(task, task.case, threads, arrays)

        def result() -> tuple[Array, ...]:
            got = self.helper.result()
            if task.op == "conv_grad_filter":
                return (filter_to_channels_last("channels_first", got[0]),)
            if task.op == "max_pool_with_indices":
                got[1] = got[1] % math.prod(task.case.window.input_size)
            return tuple(to_channels_last("channels_first", array) for array in got)

        return self.helper.prepared(result)
