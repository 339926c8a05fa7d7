"""The built-in kernels as a table: which function answers for which versions and types, mended and as in 1.19.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ort import convolution, pool, upstream_conv, upstream_pool
from pullback.ort.registry import KernelDef, Node, register_kernel
from pullback.ort.schema import ALL_FLOATS, MS_DOMAIN, ONNX_DOMAIN

SINGLE = ("float32",)
SINGLE_DOUBLE = ("float32", "float64")
BYTES = ("int8", "uint8")

Row = tuple[str, str, int, int | None, tuple[str, ...], Callable[[Node], Any]]

# ConvTransposeGrad has a schema but no row: ONNX Runtime has it on the GPU only. Nor has AveragePool before version 7.
MENDED: tuple[Row, ...] = (
    (ONNX_DOMAIN, "MaxPool", 1, 11, ALL_FLOATS, pool.max_pool),
    (ONNX_DOMAIN, "MaxPool", 12, 21, ALL_FLOATS + BYTES, pool.max_pool),
    (ONNX_DOMAIN, "MaxPool", 22, None, ALL_FLOATS + BYTES, pool.max_pool),
    (ONNX_DOMAIN, "AveragePool", 7, 21, ALL_FLOATS, pool.average_pool),
    (ONNX_DOMAIN, "AveragePool", 22, None, ALL_FLOATS, pool.average_pool),
    (ONNX_DOMAIN, "Conv", 1, 21, ALL_FLOATS, convolution.conv),
    (ONNX_DOMAIN, "Conv", 22, None, ALL_FLOATS, convolution.conv),
    (ONNX_DOMAIN, "MaxPoolGrad", 9, None, ALL_FLOATS, pool.max_pool_grad),
    (ONNX_DOMAIN, "AveragePoolGrad", 9, None, ALL_FLOATS, pool.average_pool_grad),
    (MS_DOMAIN, "ConvGrad", 1, None, ALL_FLOATS, convolution.conv_grad),
)

UPSTREAM: tuple[Row, ...] = (
    (ONNX_DOMAIN, "MaxPool", 1, 7, SINGLE, upstream_pool.max_pool),
    (ONNX_DOMAIN, "MaxPool", 8, 11, SINGLE_DOUBLE, upstream_pool.max_pool),
    (ONNX_DOMAIN, "MaxPool", 12, None, SINGLE_DOUBLE + BYTES, upstream_pool.max_pool),
    (ONNX_DOMAIN, "AveragePool", 7, 18, SINGLE, upstream_pool.average_pool),
    (ONNX_DOMAIN, "AveragePool", 19, None, SINGLE, upstream_pool.average_pool),
    (ONNX_DOMAIN, "Conv", 1, 10, SINGLE, convolution.conv),
    (ONNX_DOMAIN, "Conv", 11, None, SINGLE, convolution.conv),
    (ONNX_DOMAIN, "MaxPoolGrad", 9, None, SINGLE, upstream_pool.max_pool_grad),
    (ONNX_DOMAIN, "AveragePoolGrad", 9, None, SINGLE, upstream_pool.average_pool_grad),
    (MS_DOMAIN, "ConvGrad", 1, None, SINGLE, upstream_conv.conv_grad),
)

for _quirks, _rows in ((False, MENDED), (True, UPSTREAM)):
    for _domain, _op, _since, _end, _types, _run in _rows:
        register_kernel(KernelDef(_domain, _op, _since, _end, {"T": _types}, _run), quirks=_quirks)
