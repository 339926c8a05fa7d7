"""The error function, which NumPy has not: by a rational function in float32, by the C library's in float64."""

from __future__ import annotations

import math

import numpy as np

from pullback.onnx.executor.memory import memory_order
from pullback.onnx.ops.arguments import result_like
from pullback.rules import Array

BLOCK = 1 << 13  # elements whose temporaries stay in the cache

# erf(x) / x = P(x^2) / Q(x^2) on [0, LARGEST], fitted to math.erf by least squares with weights that level the relative error
# (1.9e-8); in float32 arithmetic 4e-7. Beyond LARGEST erf is 1 in float32.
LARGEST = 3.92
NUMERATOR = (1.12837915, 0.19039688, 0.0527472774, 0.0037651592, 0.000284864876, 2.05006182e-06)
DENOMINATOR = (1.0, 0.502067585, 0.114104989, 0.0149683028, 0.00116241055, 3.8090517e-05)


def _polynomial(coefficients: tuple[float, ...], z: Array) -> Array:
    value = z * np.float32(coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        value += np.float32(coefficient)
        value *= z
    value += np.float32(coefficients[0])
    return value


def _erf32(x: Array, out: Array) -> None:
    inside = np.clip(x, -LARGEST, LARGEST)
    z = np.square(inside)
    inside *= _polynomial(NUMERATOR, z)
    inside /= _polynomial(DENOMINATOR, z)
    np.clip(inside, -1, 1, out=out)


def erf(x: Array, out: Array | None = None) -> Array:
    """erf of each element, in the memory order of x. Half precisions are computed in float32."""
    if x.dtype == np.float64:
        values = np.fromiter(map(math.erf, x.ravel(order="K").tolist()), np.float64, x.size)
        order, back = memory_order(x)
        result = values.reshape([x.shape[axis] for axis in order]).transpose(back)
        if out is None:
            return result
        out[...] = result
        return out
    if x.dtype != np.float32:
        return erf(x.astype(np.float32)).astype(x.dtype)
    result = result_like(x, out)
    order, _ = memory_order(x)
    source, target = x.transpose(order), result.transpose(order)
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        _erf32(x, result)
        return result
    flat, flat_target = source.reshape(-1), target.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        _erf32(flat[start : start + BLOCK], flat_target[start : start + BLOCK])
    return result
