"""A chain of ONNX layers trained for one step: the ORT dialect's kernels, and a few lines of NumPy for all other operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback import ort
from pullback.rules import Array

POOLS = ("MaxPool", "AveragePool")


@dataclass
class Model:
    """Layers as recorded ({op, attrs}), parameters p<i>_W and p<i>_b, and the batch size that the graph declares."""

    layers: list[dict[str, Any]]
    parameters: dict[str, Array]
    batch_in_graph: int | str
    opset: int
    skip_filter_gradient: bool = False

    def forward(self, x: Array) -> tuple[Array, list[tuple[Array, Any]]]:
        """The output, and for each layer its input and what its gradient needs besides (Indices)."""
        saved = []
        for i, layer in enumerate(self.layers):
            op, attrs = layer["op"], layer["attrs"]
            w, b = self.parameters.get(f"p{i}_W"), self.parameters.get(f"p{i}_b")
            kept, indices = x, None
            if op == "Conv":
                x = ort.conv({"X": x, "W": w, "B": b}, attrs, opset=self.opset)
            elif op == "MaxPool":
                x, indices = ort.max_pool({"X": x}, attrs, opset=self.opset)
            elif op == "AveragePool":
                x = ort.average_pool({"X": x}, attrs, opset=self.opset)
            elif op == "Relu":
                x = np.maximum(x, 0)
            elif op == "GlobalAveragePool":
                x = x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)
            elif op == "Flatten":
                x = x.reshape(x.shape[0], -1)
            elif op == "Gemm":
                x = x @ w.T + b
            else:
                raise NotImplementedError(op)
            saved.append((kept, indices))
        return x, saved

    def backward(self, dy: Array, saved: list[tuple[Array, Any]]) -> dict[str, Array]:
        """The gradients of all parameters; as in a training graph, the model's own input gets none."""
        gradients = {}
        for i, (layer, (x, indices)) in reversed(list(enumerate(zip(self.layers, saved, strict=True)))):
            op, attrs = layer["op"], layer["attrs"]
            declared = (self.batch_in_graph, *x.shape[1:])
            if op == "Conv":
                wanted = [*(["dX"] if i else []), *([] if self.skip_filter_gradient else ["dW"]), "dB"]
                inputs = {"dY": dy, "X": x, "W": self.parameters[f"p{i}_W"]}
                dy, dw, gradients[f"p{i}_b"] = ort.conv_grad(inputs, attrs, outputs=wanted, opset=self.opset)
                if dw is not None:
                    gradients[f"p{i}_W"] = dw
            elif op == "MaxPool":
                dy = ort.max_pool_grad({"dY": dy, "Indices": indices}, attrs, output_shape=declared, opset=self.opset)
            elif op == "AveragePool":
                dy = ort.average_pool_grad({"dY": dy}, attrs, output_shape=declared, opset=self.opset)
            elif op == "Relu":
                dy = np.where(x > 0, dy, 0).astype(x.dtype)
            elif op == "GlobalAveragePool":
                dy = np.broadcast_to(dy / np.prod(x.shape[2:], dtype=x.dtype), x.shape)
            elif op == "Flatten":
                dy = dy.reshape(x.shape)
            elif op == "Gemm":
                gradients |= {f"p{i}_W": dy.T @ x, f"p{i}_b": dy.sum(axis=0)}
                dy = dy @ self.parameters[f"p{i}_W"]
        return gradients


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean loss and its gradient."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    one_hot = np.zeros_like(logits)
    one_hot[rows, labels] = 1
    return float(-log_p[rows, labels].mean()), (np.exp(log_p) - one_hot) / len(labels)


def mean_squared_error(output: Array, target: Array) -> tuple[float, Array]:
    difference = output - target
    return float((difference**2).mean()), 2 * difference / difference.size


LOSSES = {"CrossEntropyLoss": ("labels", cross_entropy), "MSELoss": ("target", mean_squared_error)}
