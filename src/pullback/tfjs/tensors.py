"""What TF.js knows as a tensor: its four dtypes, how a number is stored in each, and how values are spelt in its messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_array
from pullback.ops.replay import step
from pullback.rules import Array, is_supported_float
from pullback.shown import shown

FLOAT32, INT32, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_)
DEEPEST = 32  # lists within lists that a message spells out


def as_tensor(kernel: str, name: str, value: npt.ArrayLike) -> Array:
    """An argument as float32, int32, bool or complex64; wider and narrower numbers are taken as the nearest of these."""
    array = as_array(kernel, name, value)
    kind = array.dtype.kind
    with np.errstate(over="ignore", invalid="ignore"):
        if is_supported_float(array.dtype):
            return array.astype(FLOAT32, copy=False)
        if kind == "c":
            return array.astype(np.complex64, copy=False)
    if kind == "b":
        return array
    if kind not in "iu":
        raise TypeError(f"{kernel}: {name} has dtype {array.dtype}; TF.js has float32, int32, bool and complex64")
    return array if array.dtype == INT32 else np.asarray(step(_as_int32, (kernel, name), array))


def _as_int32(kernel: str, name: str, array: Array) -> Array:
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        raise ValueError(f"{kernel}: {name} has dtype {array.dtype} and values beyond int32, the only integers of TF.js")
    return array.astype(INT32)


def working_dtype(*arrays: Array) -> np.dtype[Any]:
    """float32 where all is float32; float64 where integers take part, so that they stay exact until the one rounding."""
    return FLOAT32 if all(array.dtype == FLOAT32 for array in arrays) else np.dtype(np.float64)


def to_int32(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What an Int32Array keeps of each number: truncated toward zero, modulo 2**32, NaN and infinity as 0."""
    whole = np.trunc(np.where(np.isfinite(values), values, 0.0))
    return np.asarray(np.remainder(whole + 2.0**31, 2.0**32) - 2.0**31)


def stored_as(dtype: np.dtype[Any], values: Array) -> Array:
    """Numbers stored in a typed array of a tensor's dtype."""
    if dtype == FLOAT32:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(FLOAT32, copy=False)
    cut = to_int32(values.astype(np.float64))
    return cut.astype(INT32) if dtype == INT32 else np.remainder(cut, 256.0) != 0  # bool lives in a Uint8Array


def js_text(value: Any, around: tuple[int, ...] = ()) -> str:
    """A value as JavaScript puts it into a message: arrays flattened with commas, None as undefined, nothing within itself."""
    if value is None:
        return "undefined"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (list, tuple, np.ndarray)):
        if id(value) in around or len(around) == DEEPEST:
            return ""
        return ",".join(js_text(entry, (*around, id(value))) for entry in value)
    if isinstance(value, int) and value.bit_length() > 1024:
        return "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, (str, int, float, np.generic)) else shown(value)


def is_text(value: Any, *texts: str) -> bool:
    """Whether a value is one of these strings; an array, say, is none."""
    return isinstance(value, str) and value in texts


def dtype_name(dtype: np.dtype[Any]) -> str:
    """What TF.js calls a dtype."""
    names = {"f": "float32", "i": "int32", "u": "int32", "b": "bool", "c": "complex64"}
    return "float32" if is_supported_float(dtype) else names.get(dtype.kind, "string")
