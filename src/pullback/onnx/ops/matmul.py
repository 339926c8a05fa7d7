"""Gemm, MatMul and Einsum on NumPy's BLAS."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.rules import Array


@op("MatMul")
def matmul(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a, b))


@op("Gemm")
def gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    """alpha A B + beta C."""
    kind = a.dtype.type
    y: Array = np.matmul(a.T if node.attr("transA", 0) else a, b.T if node.attr("transB", 0) else b)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if alpha != 1:
        y *= kind(alpha)
    if c is not None and beta != 0:
        y += c if beta == 1 else c * kind(beta)
    return y


@op("Einsum")
def einsum(node: Node, *arrays: Array) -> Array:
    return np.asarray(np.einsum(node.attr("equation").replace(" ", ""), *arrays, optimize=True))
