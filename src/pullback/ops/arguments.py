"""Argument checks shared by the ops: each failure is one exception that names the op, the argument, the shapes and the rule."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pullback.ops.foreign_arrays import as_numpy, refuse_recorded
from pullback.ops.hints import DEFAULT_LAYOUT, hint_at_layout
from pullback.rules import FLOAT_NAMES, LAYOUT_NAMES, Array, Layout, is_supported_float
from pullback.shown import shown
from pullback.window import PADDING_NAMES, ROUNDINGS, Padding, Rounding, Window

LARGEST = 2**31 - 1  # of a size, stride, dilation or pad: sums and products of them stay far inside int64
MOST_TAPS = 2**24
FEWEST_AXES = 3  # of arrays whose values do not count; an array of fewer is a number or a list of them
MOST_ENTRIES = 64  # of a sequence: an array has no more axes
LAYOUTS = {name.upper(): layout for name, layout in LAYOUT_NAMES.items()}  # in any case
PADDINGS = {name: name for name in PADDING_NAMES} | {"same_upper": "same"}  # the other name is ONNX's
MOST_AXES = 16  # of lists within lists; the ops take 5


def as_array(op: str, name: str, value: npt.ArrayLike) -> Array:
    """A plain native-endian NumPy view (or copy, where it must be) of an argument."""
    masked = sys.modules.get("numpy.ma")  # imported by whoever has made such an array, and slow to import for nobody
    if isinstance(value, getattr(masked, "MaskedArray", ())):  # none while another thread imports it
        raise TypeError(f"{op}: {name} is a masked array; pass {name}.filled(...) instead")
    if isinstance(value, (list, tuple)) and _too_deep(value):
        raise ValueError(f"{op}: {name} is not an array but lists within lists, more than {MOST_AXES} deep: {shown(value)}")
    refuse_recorded(op, name, value)
    try:
        array = as_numpy(op, name, value)
    except ValueError as error:
        raise ValueError(f"{op}: {name} is not an array: {error}") from None
    except MemoryError:
        raise MemoryError(f"{op}: {name} does not fit into memory as an array: {shown(value)}") from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _too_deep(value: Any) -> bool:
    """Whether lists lie within lists to no end: NumPy would look at each of them again and again."""
    for _ in range(MOST_AXES):
        if not isinstance(value, (list, tuple)) or not value:
            return False
        value = value[0]
    return True


def as_float_array(op: str, name: str, value: npt.ArrayLike) -> Array:
    array = as_array(op, name, value)
    check_float(op, name, array.dtype)
    return array


def check_float(op: str, name: str, dtype: np.dtype[Any]) -> None:
    if not is_supported_float(dtype):
        raise TypeError(f"{op}: {name} has dtype {dtype}; the dtypes are {', '.join(FLOAT_NAMES)} (use {name}.astype(...))")


def as_indices(op: str, value: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = as_array(op, "indices", value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{op}: indices have dtype {array.dtype}; they must be integers (int64)")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{op}: indices go beyond the int64 range")
    return array.astype(np.int64, copy=False)


def same_dtype(op: str, **arrays: Array) -> np.dtype[Any]:
    """The one dtype of several arrays; mixing is refused, since it would hide a conversion."""
    dtypes = {array.dtype for array in arrays.values()}
    if len(dtypes) > 1:
        listed = ", ".join(f"{name} is {array.dtype}" for name, array in arrays.items())
        raise TypeError(f"{op}: {listed}; convert one so that they agree")
    return dtypes.pop()


def as_layout(op: str, layout: str, rank: int) -> Layout:
    """The layout behind its name; a name with letters must have those of the rank."""
    known = LAYOUTS.get(layout.upper()) if isinstance(layout, str) else None
    if known is None:
        raise ValueError(f"{op}: unknown layout {shown(layout)}; the layouts are {', '.join(LAYOUT_NAMES)}")
    if layout.upper().startswith("N") and len(layout) != rank + 2:
        raise ValueError(f"{op}: layout {shown(layout)} has {len(layout)} axes but the array has {rank + 2}")
    return known


def layout_of(op: str, layout: str, name: str, shape: tuple[int, ...]) -> Layout:
    """The layout of an array of activations; one that was left to its default is doubted where the shape speaks against it."""
    if layout is DEFAULT_LAYOUT:
        hint_at_layout(op, name, shape)
    return as_layout(op, layout, spatial_rank(op, name, shape))


def spatial_rank(op: str, name: str, shape: Sequence[int]) -> int:
    rank = len(shape) - 2
    if rank not in (1, 2, 3):
        raise ValueError(
            f"{op}: {name} has shape {tuple(shape)}; it needs 3, 4 or 5 axes (batch, channels and 1, 2 or 3 spatial axes)"
        )
    return rank


def as_int(op: str, name: str, value: Any) -> int:
    """A whole number of at most 31 bits: int or NumPy integer, no bool, no float."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: {name} must be an integer, not {shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an integer, not {shown(value)}") from None
    if abs(number) > LARGEST:
        raise ValueError(f"{op}: {name} is {shown(number)}, beyond the largest size, {LARGEST}")
    return number


def as_entries(value: Any) -> tuple[Any, ...] | None:
    """The entries of a sequence; None for what is none: a single value, a 0-d array, a string, a set or a dict, or endless."""
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        return None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return None
    entries = tuple(islice(value, MOST_ENTRIES + 1))
    return entries if len(entries) <= MOST_ENTRIES else None


def as_shape(op: str, name: str, shape: Any) -> tuple[int, ...]:
    """A shape: a sequence of non-negative integers, or an array of that shape."""
    if getattr(shape, "ndim", 0) >= FEWEST_AXES:
        shape = shape.shape
    entries = as_entries(shape)
    if entries is None:
        raise TypeError(f"{op}: {name} must be a sequence of integers, not {shown(shape)}")
    sizes = tuple(as_int(op, name, size) for size in entries)
    if any(size < 0 for size in sizes):
        raise ValueError(f"{op}: {name} is {sizes}; sizes cannot be negative")
    return sizes


def per_axis(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """One positive integer per spatial axis, from one for all or one for each."""
    entries = as_entries(value)
    numbers = (value,) * rank if entries is None else entries
    if len(numbers) != rank:
        raise ValueError(f"{op}: {name} is {shown(value)}, which has {len(numbers)} entries for {rank} spatial axes")
    sizes = tuple(as_int(op, name, number) for number in numbers)
    if any(size < 1 for size in sizes):
        raise ValueError(f"{op}: {name} is {shown(value)}; every entry must be at least 1")
    return sizes


def as_padding(op: str, padding: Padding, rank: int) -> str | tuple[tuple[int, int], ...]:
    """A padding name, or one (low, high) pair per axis."""
    if isinstance(padding, str):
        known = PADDINGS.get(padding.lower())
        if known is None:
            raise ValueError(
                f"{op}: unknown padding {shown(padding)}; it is one of {', '.join(PADDING_NAMES)}, an integer, one integer per "
                "spatial axis, or one (low, high) pair per spatial axis"
            )
        return known
    entries = as_entries(padding)
    if entries is None:
        both = as_int(op, "padding", padding)
        return ((both, both),) * rank
    if len(entries) != rank:
        raise ValueError(
            f"{op}: padding {shown(padding)} has {len(entries)} entries for {rank} spatial axes; "
            "give one integer or one (low, high) pair per axis"
        )
    pairs = []
    for entry in entries:
        pair = as_entries(entry)
        if pair is None:
            pair = (entry, entry)
        if len(pair) != 2:
            raise ValueError(f"{op}: padding entry {shown(entry)} is neither an integer nor a (low, high) pair")
        pairs.append((as_int(op, "padding", pair[0]), as_int(op, "padding", pair[1])))
    return tuple(pairs)


def one_of(op: str, name: str, value: Any, choices: Sequence[Any]) -> Any:
    """A value that must be one of a few; bools do not pass for numbers."""
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise ValueError(f"{op}: {name} is {shown(value)}; it must be one of {', '.join(map(repr, choices))}")
    return value


def check_taps(op: str, kernel: tuple[int, ...]) -> None:
    if math.prod(kernel) > MOST_TAPS:
        raise ValueError(f"{op}: a window of {kernel} has {math.prod(kernel)} taps; the most is {MOST_TAPS}")


def make_window(
    op: str,
    input_size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: Any,
    dilation: Any,
    padding: Padding,
    rounding: str,
) -> Window:
    """The window of an op's keywords, with every keyword checked."""
    rank = len(input_size)
    check_taps(op, kernel)
    strides = per_axis(op, "stride", stride, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    pads = as_padding(op, padding, rank)
    one_of(op, "rounding", rounding, ROUNDINGS)
    try:
        return Window.make(input_size, kernel, strides, dilations, pads, cast(Rounding, rounding))
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from None


def split_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...], int]:
    """(batch, spatial sizes, channels) of an activation's shape."""
    if layout == "channels_last":
        return shape[0], shape[1:-1], shape[-1]
    return shape[0], shape[2:], shape[1]


def check_shape(op: str, name: str, shape: tuple[int, ...], expected: tuple[int, ...], why: str) -> None:
    if shape != expected:
        raise ValueError(f"{op}: {name} has shape {shape} but must have {expected}: {why}")
