"""TensorFlow.js, CPU backend, under node, channels last, one thread (it has no more)."""

from __future__ import annotations

import shutil
from json import loads
from pathlib import Path

import numpy as np

from pullback.bench.cases import Task
from pullback.bench.data import Data
from pullback.bench.peers.base import Prepared, UnsupportedError
from pullback.bench.peers.helper import Helper, peers_folder
from pullback.rules import Array, Layout

BACKEND = "@tensorflow/tfjs-backend-cpu"


class TfjsPeer:
    """Its kernels through runKernel; 1-D cases as 2-D ones of height 1, as its own conv1d does."""

    name = "tfjs"
    layouts: tuple[Layout, ...] = ("channels_last",)
    slow = True

    def __init__(self) -> None:
        self.modules = (peers_folder() / "tfjs" / "node_modules").resolve()
        script = Path(__file__).with_name("tfjs_helper.js")
        self.helper = Helper("TF.js", ["node", str(script)], {"NODE_PATH": str(self.modules)})

    def missing(self) -> str | None:
        if shutil.which("node") is None:
            return "node is not installed"
        return None if (self.modules / BACKEND).exists() else f"no {BACKEND} in {peers_folder() / 'tfjs'}: make peers"

    def version(self) -> str:
        return str(loads((self.modules / BACKEND / "package.json").read_text())["version"])

    def close(self) -> None:
        self.helper.close()

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        if task.dtype != "float32":
            raise UnsupportedError("it has float32 only")
        lifted = data.lifted()
        case = lifted.case
        depthwise = case.groups > 1 and case.groups == case.channels_in == case.channels_out
        if case.kind == "conv" and case.groups > 1 and not depthwise:
            raise UnsupportedError("no grouped convolution")
        if max(case.window.dilation) > 1 and task.op != "conv":
            raise UnsupportedError("no dilated pooling and no dilated convolution gradients")
        if case.window.rank == 3 and len({pad for pair in case.pads for pad in pair}) > 1:
            raise UnsupportedError("one padding for all three axes only")
        arrays = {"x": lifted.x, "dy": lifted.dy}
        if case.kind == "conv":
            arrays["filter"] = np.swapaxes(lifted.filter, -1, -2) if depthwise else lifted.filter
        self.helper.prepare(task, case, threads, arrays)

        def result() -> tuple[Array, ...]:
            got = self.helper.result()
            if task.op == "max_pool_with_indices":
                return got[0], got[1].astype(np.int64) // case.channels_in
            if task.op == "conv_grad_filter" and depthwise:
                return (np.swapaxes(got[0], -1, -2),)
            return tuple(got)

        return self.helper.prepared(result)
