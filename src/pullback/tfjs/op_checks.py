"""What TF.js's ops ask of their arguments, in TF.js's words: dtypes, ranks, pads, strides and dilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from pullback.ops.arguments import as_array
from pullback.tfjs.geometry import is_number
from pullback.tfjs.tensors import FLOAT32, as_tensor, dtype_name, js_text
from pullback.tfjs.variables import Variable
from pullback.tracing import any_traced, plain

Wanted = Literal["numeric", "float32"]


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor already: an array, a variable, or what stands for one while a gradient is recorded."""
    return isinstance(plain(value), (np.ndarray, np.generic, Variable))


def operand(op: str, name: str, value: Any, wanted: Wanted = "numeric") -> Any:
    """An op's argument as a tensor; lists become what the op wants, arrays must have its dtype."""
    if isinstance(value, Variable):
        value = value.value
    if any_traced([value]):
        kind = dtype_name(plain(value).dtype)
        tensor = value.astype(FLOAT32) if kind == "float32" and value.dtype != FLOAT32 else value
    else:
        array = as_array(op, name, value)
        if array.dtype.kind == "O":
            raise TypeError(f"Argument '{name}' passed to '{op}' must be a tensor or numbers, but got {type(value).__name__}")
        kind = dtype_name(array.dtype)
        if wanted == "float32" and not is_tensor(value) and kind in ("int32", "bool"):
            array, kind = array.astype(FLOAT32), wanted
        tensor = array if kind == "string" else as_tensor(op, name, array)
    if kind == "string" or (wanted != "numeric" and kind != wanted):
        raise TypeError(f"Argument '{name}' passed to '{op}' must be {wanted} tensor, but got {kind} tensor")
    return tensor


def sizes(op: str, name: str, shape: Any) -> list[Any]:
    """A shape argument as a list; what is in it is the kernel's to check."""
    if not isinstance(shape, (list, tuple, np.ndarray)):
        raise TypeError(f"Error in {op}: {name} must be a list of sizes, but got {js_text(shape)}.")
    return list(shape)


def ensure(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def in_batch(tensor: Any, rank: int) -> Any:
    """A tensor of this rank; one of a rank less is a batch of one."""
    return tensor.reshape((1, *tensor.shape)) if tensor.ndim == rank - 1 else tensor


def as_given(result: Any, given: Any, rank: int) -> Any:
    """A result without the batch axis that the given tensor did not have."""
    return result.reshape(result.shape[1:]) if given.ndim == rank - 1 else result


def all_entries(value: Any, holds: Callable[[Any], bool]) -> bool:
    entries = value if isinstance(value, (list, tuple, np.ndarray)) else [value]
    return all(is_number(entry) and holds(entry) for entry in entries)


def check_pad(op: str, pad: Any, mode: Any) -> None:
    """With a rounding mode pads must be whole numbers; without one nothing is checked here."""
    if mode is None:
        return
    if isinstance(pad, str):
        raise ValueError(f"Error in {op}: pad must be an integer when using dimRoundingMode {js_text(mode)} but got pad {pad}.")
    if is_number(pad):
        numbers = [pad]
    elif isinstance(pad, (list, tuple, np.ndarray)):
        numbers = [number for pair in pad for number in (pair if isinstance(pair, (list, tuple, np.ndarray)) else [pair])]
    else:
        raise ValueError(f"Error in {op}: Unknown padding parameter: {js_text(pad)}")
    for number in numbers:
        ensure(
            is_number(number) and (isinstance(number, int) or float(number).is_integer()),
            f"Error in {op}: pad must be an integer when using dimRoundingMode {js_text(mode)} but got pad {js_text(number)}.",
        )


def check_one_step(op: str, strides: Any, dilations: Any) -> None:
    """Strides or dilations, not both, may be other than 1."""
    ensure(
        all_entries(strides, lambda s: s == 1) or all_entries(dilations, lambda d: d == 1),
        f"Error in {op}: Either strides or dilations must be 1. "
        f"Got strides {js_text(strides)} and dilations '{js_text(dilations)}'",
    )


def check_steps(op: str, strides: Any, dilations: Any) -> None:
    ensure(all_entries(dilations, lambda d: d > 0), f"Error in {op}: Dilated rates should be larger than 0.")
    ensure(all_entries(strides, lambda s: s > 0), f"Error in {op}: Strides should be larger than 0.")
