"""Runs inside ONNX Runtime's own environment (no pullback there): builds one-op graphs, runs and times them on request."""

import json
import math
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np

onnx: Any = import_module("onnx")
ort: Any = import_module("onnxruntime")

OPSET = 17
IR_VERSION = 8


class UnsupportedError(Exception):
    pass


def attributes(case: dict[str, Any], dilated: bool) -> dict[str, Any]:
    lows, highs = zip(*case["padding"], strict=True)
    found = {"kernel_shape": case["kernel"], "strides": case["stride"], "pads": [*lows, *highs]}
    return found | ({"dilations": case["dilation"]} if dilated else {})


def nodes(op: str, case: dict[str, Any]) -> tuple[list[Any], list[str], list[str]]:
    """The nodes of an op with their graph's inputs and outputs."""
    make = onnx.helper.make_node
    max_pool = make("MaxPool", ["x"], ["y", "indices"], **attributes(case, dilated=False))
    max_grad = make("MaxPoolGrad", ["dy", "indices"], ["dx"])
    avg_pool = make("AveragePool", ["x"], ["y"], **attributes(case, dilated=False))
    avg_grad = make("AveragePoolGrad", ["dy"], ["dx"], **attributes(case, dilated=False))
    conv = attributes(case, dilated=True) | {"group": case["groups"]}
    conv_grad = ("ConvGrad", ["dy", "x", "filter"])
    if op.startswith("max_pool_grad"):
        return [max_grad], ["dy", "indices"], ["dx"]
    graphs: dict[str, tuple[list[Any], list[str], list[str]]] = {
        "max_pool": ([make("MaxPool", ["x"], ["y"], **attributes(case, dilated=False))], ["x"], ["y"]),
        "max_pool_with_indices": ([max_pool], ["x"], ["y", "indices"]),
        "max_pair": ([max_pool, max_grad], ["x", "dy"], ["y", "dx"]),
        "avg_pool": ([avg_pool], ["x"], ["y"]),
        "avg_pool_grad": ([avg_grad], ["dy"], ["dx"]),
        "avg_pair": ([avg_pool, avg_grad], ["x", "dy"], ["y", "dx"]),
        "conv": ([make("Conv", ["x", "filter"], ["y"], **conv)], ["x", "filter"], ["y"]),
        "conv_grad_input": ([make(*conv_grad, ["dx"], domain="com.microsoft", **conv)], ["dy", "x", "filter"], ["dx"]),
        "conv_grad_filter": ([make(*conv_grad, ["", "df"], domain="com.microsoft", **conv)], ["dy", "x", "filter"], ["df"]),
    }
    if op not in graphs:
        raise UnsupportedError(f"no {op}")
    return graphs[op]


class Session:
    """A graph with its data bound."""

    def __init__(self, op: str, case: dict[str, Any], threads: int, arrays: dict[str, Any]) -> None:
        x, y = arrays["x"].shape, (case["batch"], case["channels_out"], *case["output_size"])
        shapes = {"x": x, "dx": x, "y": y, "dy": y, "indices": y}
        if "filter" in arrays:
            shapes |= {"filter": arrays["filter"].shape, "df": arrays["filter"].shape}
        found, inputs, self.outputs = nodes(op, case)

        def described(names: list[str]) -> list[Any]:
            kinds = {name: onnx.TensorProto.INT64 if name == "indices" else onnx.TensorProto.FLOAT for name in names}
            return [onnx.helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in names]

        graph = onnx.helper.make_graph(found, op, described(inputs), described(self.outputs))
        opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.arrays = arrays  # bound without a copy: they must live as long as the binding
        for name in inputs:
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(arrays[name]))
        for name in self.outputs:
            kind = np.int64 if name == "indices" else np.float32
            value = ort.OrtValue.ortvalue_from_shape_and_type(list(shapes[name]), kind, "cpu")
            self.binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def seconds(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - start) / calls

    def results(self) -> list[Any]:
        self.run()
        return [value.numpy() for value in self.binding.get_outputs()]


def prepare(message: dict[str, Any], arrays: dict[str, Any]) -> Session:
    op, case, threads = message["op"], message["case"], message["threads"]
    if op.startswith("max_pool_grad"):
        arrays["indices"] = Session("max_pool_with_indices", case, threads, arrays).results()[1]
    return Session(op, case, threads, arrays)


def receive() -> tuple[dict[str, Any], dict[str, Any]] | None:
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    message = json.loads(line)
    arrays = {}
    for entry in message["arrays"]:
        dtype = np.dtype(entry["dtype"])
        raw = sys.stdin.buffer.read(math.prod(entry["shape"]) * dtype.itemsize)
        arrays[entry["name"]] = np.frombuffer(raw, dtype).reshape(entry["shape"]).copy()
    return message, arrays


def reply(header: dict[str, Any], arrays: list[Any]) -> None:
    header["arrays"] = [{"dtype": a.dtype.name, "shape": a.shape} for a in arrays]
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n")
    for array in arrays:
        sys.stdout.buffer.write(np.ascontiguousarray(array).tobytes())
    sys.stdout.buffer.flush()


def main() -> None:
    session: Session | None = None
    while (received := receive()) is not None:
        message, arrays = received
        header: dict[str, Any] = {}
        results: list[Any] = []
        try:
            if message["command"] == "prepare":
                session = prepare(message, arrays)
            elif session is not None and message["command"] == "time":
                header["seconds"] = session.seconds(message["calls"])
            elif session is not None:
                results = session.results()
        except UnsupportedError as error:
            header["unsupported"] = str(error)
        except Exception as error:  # everything the graph may refuse is an answer, not the end of the helper
            header["error"] = str(error).splitlines()[0]
        reply(header, results)


if __name__ == "__main__":
    main()
