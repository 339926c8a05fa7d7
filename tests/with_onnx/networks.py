"""Small ONNX models built in code, for the tests: chains of layers with random weights, and a few whole networks."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


class Model:
    """A graph that grows by calls: `y = m.op("Relu", x)`; weights are made by `m.weight(name, shape)`."""

    def __init__(self, opset=17, dtype=np.float32, seed=0):
        self.opset, self.dtype, self.rng = opset, np.dtype(dtype), np.random.default_rng(seed)
        self.nodes, self.inputs, self.outputs, self.initializers, self.count = [], [], [], [], 0

    def input(self, name, shape, dtype=None):
        kind = DTYPES[self.dtype] if dtype is None else dtype
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, name, shape, values=None):
        fan_in = max(1, int(np.prod(shape[1:])))
        values = self.rng.standard_normal(shape) / np.sqrt(fan_in) if values is None else np.broadcast_to(values, shape)
        return self.tensor(name, np.asarray(values, self.dtype))

    def tensor(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, *values):
        self.count += 1
        return self.tensor(f"ints_{self.count}", np.array(values, np.int64))

    def op(self, op_type, *inputs, outputs=1, name=None, domain="", **attributes):
        self.count += 1
        names = [name or f"t{self.count}"] + [f"t{self.count}_{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def conv(self, x, name, channels_in, channels_out, k=3, rank=2, bias=True, groups=1, **attributes):
        w = self.weight(f"{name}.weight", (channels_out, channels_in // groups, *(k,) * rank))
        inputs = [x, w, self.weight(f"{name}.bias", (channels_out,))] if bias else [x, w]
        attributes = {"pads": [k // 2] * (2 * rank), "kernel_shape": [k] * rank, "group": groups} | attributes
        return self.op("Conv", *inputs, **attributes)

    def norm(self, x, name, channels):
        scale = self.weight(f"{name}.weight", (channels,), 1 + 0.1 * self.rng.standard_normal(channels))
        bias = self.weight(f"{name}.bias", (channels,), 0.1 * self.rng.standard_normal(channels))
        mean, var = self.weight(f"{name}.running_mean", (channels,), 0.0), self.weight(f"{name}.running_var", (channels,), 1.0)
        return self.op("BatchNormalization", x, scale, bias, mean, var)

    def linear(self, x, name, features_in, features_out):
        w, b = self.weight(f"{name}.weight", (features_out, features_in)), self.weight(f"{name}.bias", (features_out,))
        return self.op("Gemm", x, w, b, transB=1)

    def output(self, name, shape=None, dtype=None):
        self.outputs.append(helper.make_tensor_value_info(name, DTYPES[self.dtype] if dtype is None else dtype, shape))

    def proto(self, *outputs):
        for name in outputs:
            self.output(name)
        graph = helper.make_graph(self.nodes, "model", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))
        del model.graph.value_info[:]
        onnx.checker.check_model(model)
        return model


def lenet(batch=2, size=16, **options):
    m = Model(**options)
    x = m.input("x", [batch, 1, size, size])
    x = m.op("MaxPool", m.op("Relu", m.conv(x, "conv1", 1, 4, 5)), kernel_shape=[2, 2], strides=[2, 2])
    x = m.op("AveragePool", m.op("Tanh", m.conv(x, "conv2", 4, 6, 5)), kernel_shape=[2, 2], strides=[2, 2])
    x = m.op("Flatten", x)
    x = m.op("Relu", m.linear(x, "fc1", 6 * (size // 4) ** 2, 20))
    return m.proto(m.linear(x, "fc2", 20, 5))


def vgg(batch=2, size=16, norm=False, **options):
    m = Model(**options)
    x, channels = m.input("x", [batch, 3, size, size]), 3
    for i, width in enumerate((4, "M", 6, "M", 8, 8, "M")):
        if width == "M":
            x = m.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
            continue
        x = m.conv(x, f"features.{i}", channels, width)
        x = m.op("Relu", m.norm(x, f"features.{i}.norm", width) if norm else x)
        channels = width
    x = m.op("Reshape", x, m.ints(0, 8 * (size // 8) ** 2))
    x = m.op("Relu", m.linear(x, "classifier.0", 8 * (size // 8) ** 2, 12))
    return m.proto(m.linear(x, "classifier.3", 12, 5))


def resnet18(batch=2, size=16, width=4, **options):
    """Four stages of two blocks, with the stem and shortcuts of the original; few channels."""
    m = Model(**options)
    x = m.input("x", [batch, 3, size, size])
    x = m.conv(x, "conv1", 3, width, 7, bias=False, strides=[2, 2])
    x = m.op("Relu", m.norm(x, "bn1", width))
    x, channels = m.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), width
    for stage in range(4):
        out = width << stage
        for block in range(2):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = m.conv(x, f"{name}.conv1", channels, out, bias=False, strides=[stride, stride])
            y = m.op("Relu", m.norm(y, f"{name}.bn1", out))
            y = m.norm(m.conv(y, f"{name}.conv2", out, out, bias=False), f"{name}.bn2", out)
            if stride == 2:
                x = m.conv(x, f"{name}.downsample.0", channels, out, 1, bias=False, strides=[2, 2])
                x = m.norm(x, f"{name}.downsample.1", out)
            x, channels = m.op("Relu", m.op("Add", y, x)), out
    x = m.op("Flatten", m.op("GlobalAveragePool", x))
    return m.proto(m.linear(x, "fc", channels, 5))


def net3d(batch=2, size=8, **options):
    m = Model(**options)
    x = m.input("x", [batch, 1, size, size, size])
    x = m.op("MaxPool", m.op("Relu", m.conv(x, "conv1", 1, 4, 3, rank=3)), kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = m.op("Relu", m.norm(m.conv(x, "conv2", 4, 6, 3, rank=3, bias=False), "bn2", 6))
    x = m.op("Flatten", m.op("GlobalAveragePool", x))
    return m.proto(m.linear(x, "fc", 6, 4))


def branching(m, condition):
    """A model that ends with -x or |x|, as a condition says."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], ["y"])], op, [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        )
        for op in ("Neg", "Abs")
    ]
    m.output(m.op("If", condition, name="chosen", then_branch=branches[0], else_branch=branches[1]))
    return m.proto()
