"""replace_head: a trained model with a fresh last layer for another number of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pullback.onnx.checks import whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.model_files import load_model
from pullback.onnx.train.inference_model import places_of
from pullback.rules import Array

# What may stand between the last layer and the output: these keep the axis of the classes.
PASSED = ("Add", "Identity", "Softmax", "LogSoftmax", "Sigmoid", "Flatten", "Reshape", "Squeeze", "GlobalAveragePool", "ReduceMean",
          "Cast", "Relu", "Dropout")  # fmt: skip
LAYERS = ("Gemm", "MatMul", "Conv")


def replace_head(model: Any, classes: int, seed: int = 0) -> onnx.ModelProto:
    """A copy of a model whose last Gemm, MatMul (+ Add) or 1x1 Conv has `classes` outputs and fresh weights.

    The weights are drawn as PyTorch does for linear layers: uniform within 1 / sqrt(inputs), in an order that `seed` decides.
    """
    whole("replace_head", "classes", classes, 1)
    whole("replace_head", "seed", seed, 0)
    proto = load_model(model)
    return _Head(proto).replaced(classes, seed)


class _Head:
    """The last layer of a model, with what is between it and the first output."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.makers: dict[str, onnx.NodeProto] = {name: node for node in self.graph.node for name in node.output if name}
        self.tensors = places_of(model.graph)
        self.biases: list[str] = []
        self.reshapes: list[str] = []
        self.between: list[str] = []
        self.layer = self._find(self.graph.output[0].name)

    def _refuse(self, why: str) -> OnnxError:
        return OnnxError(
            f"replace_head: {why}; it replaces the last Gemm, MatMul (+ Add) or 1x1 Conv before the output "
            f"'{self.graph.output[0].name}': change the model where it is made"
        )

    def _find(self, name: str) -> onnx.NodeProto:
        """The layer that makes a tensor, through nodes that keep its classes."""
        self.between.append(name)
        node = self.makers.get(name)
        if node is None:
            raise self._refuse(f"there is no layer before the output (from '{name}' back nothing makes it)")
        if node.op_type in LAYERS:
            return node
        if node.op_type not in PASSED:
            raise self._refuse(f"node '{node.name}' ({node.op_type}) is between the last layer and the output")
        before = [each for each in node.input if each and each not in self.tensors]
        if node.op_type == "Add":
            if len(before) != 1:
                raise self._refuse(f"node '{node.name}' (Add) adds two branches before the output")
            self.biases += [each for each in node.input if each in self.tensors]
        if node.op_type == "Reshape":
            if node.input[1] not in self.tensors:
                raise self._refuse(f"node '{node.name}' (Reshape) has a shape that is computed")
            self.reshapes.append(node.input[1])
        if not before:
            raise self._refuse(f"there is no layer before the output (node '{node.name}' has constants alone)")
        return self._find(before[0])

    def _weight(self) -> tuple[str, Array, int]:
        """The weight's name, its values and the axis that counts the outputs."""
        node = self.layer
        place = 0 if node.op_type == "MatMul" and node.input[0] in self.tensors else 1
        tensor = self.tensors.get(node.input[place])
        if tensor is None or place == 0:
            raise self._refuse(
                f"the weight of node '{node.name}' ({node.op_type}) is no constant of the model on its right side"
            )
        array = numpy_helper.to_array(tensor)
        if node.op_type == "Conv":
            if array.shape[2:] != (1,) * (array.ndim - 2) or any(a.name == "group" and a.i != 1 for a in node.attribute):
                raise self._refuse(f"node '{node.name}' is a Conv with a window of {array.shape[2:]} or groups")
            return node.input[place], array, 0
        transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
        if array.ndim != 2:
            raise self._refuse(f"the weight of node '{node.name}' ({node.op_type}) has {array.ndim} axes")
        return node.input[place], array, 0 if transposed else 1

    def replaced(self, classes: int, seed: int) -> onnx.ModelProto:
        name, weight, axis = self._weight()
        old = weight.shape[axis]
        self._check_shared(name)
        bound = 1 / math.sqrt(max(weight.size // old, 1))
        # Raw bits: the same numbers with every version of NumPy.
        bits = np.random.Philox(key=[seed & (2**64 - 1), classes])
        self._set(name, _uniform(bits, (*weight.shape[:axis], classes, *weight.shape[axis + 1 :]), bound, weight.dtype))
        biases = self.biases + ([each for each in self.layer.input[2:3] if each] if self.layer.op_type != "MatMul" else [])
        for bias in biases:
            tensor = self.tensors.get(bias)
            values = None if tensor is None else numpy_helper.to_array(tensor)
            if values is None or values.size not in (1, old):
                raise self._refuse(f"the bias '{bias}' is no constant with a value for each of the {old} outputs")
            self._check_shared(bias)
            shape = tuple(classes if size == old else size for size in values.shape) or (classes,)
            if values.size == 1:
                shape = (*values.shape[:-1], classes) if values.ndim else (classes,)
            self._set(bias, _uniform(bits, shape, bound, values.dtype))
        for shape_name in self.reshapes:
            sizes = np.array(numpy_helper.to_array(self.tensors[shape_name]))
            if (sizes[1:] == old).any():
                self._check_shared(shape_name)
                self._set(shape_name, np.where((sizes == old) & (np.arange(sizes.size) > 0), classes, sizes))
        self._fix_shapes(old, classes, {name, *biases})
        return self.model

    def _check_shared(self, name: str) -> None:
        readers = [node for node in self.graph.node if name in node.input]
        if len(readers) > 1:
            raise self._refuse(f"'{name}' belongs to {len(readers)} nodes")

    def _set(self, name: str, values: Array) -> None:
        tensor = self.tensors[name]
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        for value in self.graph.input:
            if value.name == name:
                value.CopyFrom(helper.make_tensor_value_info(name, tensor.data_type, values.shape))

    def _fix_shapes(self, old: int, classes: int, weights: set[str]) -> None:
        """The outputs' declared shapes; what is declared of weights and inside the graph after the layer is inferred anew."""
        changed = set(self.between) | set(self.layer.output) | weights
        output = self.graph.output[0]
        axes = output.type.tensor_type.shape.dim
        for place, axis in enumerate(axes):
            if place >= 1 and axis.dim_value == old:
                axis.dim_value = classes
                break
        kept = [value for value in self.graph.value_info if value.name not in changed]
        del self.graph.value_info[:]
        self.graph.value_info.extend(kept)


def _uniform(bits: np.random.Philox, shape: tuple[int, ...], bound: float, dtype: Any) -> Array:
    raw = bits.random_raw(math.prod(shape)) >> np.uint64(11)
    return ((raw.astype(np.float64) * 2.0**-53 * 2 - 1) * bound).astype(dtype).reshape(shape)
