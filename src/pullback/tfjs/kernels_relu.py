"""TF.js's rectifier, so that a network of its convolutions and pools can be trained with the ops of this dialect."""

from __future__ import annotations

import numpy as np

from pullback.ops.replay import step
from pullback.rules import Array
from pullback.tfjs.call import Call, kernel
from pullback.tfjs.tensors import FLOAT32


def _rectified(x: Array) -> Array:
    zero = np.zeros((), x.dtype)
    return np.asarray(np.maximum(x, zero) + zero)  # of -0 and 0 JavaScript's maximum is 0


def slope(x: Array) -> Array:
    """The derivative: 1 above 0, else 0; of NaN NaN."""
    return np.where(np.isnan(x), np.nan, x > 0).astype(FLOAT32)


@kernel("Relu", (), label="Relu")
def relu(call: Call) -> Array:
    """The larger of `x` and 0, NaN where x is; no attributes."""
    x = call.tensor("x", None)
    result: Array = step(_rectified, (), x)
    return result
