"""TF.js's geometry: tuple arguments, pads and rounding modes to a Window, in 2-D and 3-D.

Its rules differ from pullback's own and between 2-D and 3-D, so sizes and pads are worked out here and handed over finished.
Letters per axis as in `pullback.window`: n input, k kernel, e span, s stride, p low pad, q high pad, o output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pullback.ops.arguments import LARGEST, check_taps
from pullback.rules import Layout
from pullback.shown import shown
from pullback.tfjs.tensors import is_text, js_text
from pullback.window import ROUNDINGS, Window, round_size, same_pads, span

LAYOUTS: dict[int, dict[str, Layout]] = {
    2: {"NHWC": "channels_last", "NCHW": "channels_first"},
    3: {"NDHWC": "channels_last", "NCDHW": "channels_first"},
}
AxisSizes = tuple[int, int, int]  # o, p, q of one axis
POSITIVE = "Tensor must have a shape comprised of positive integers"


def as_layout(rank: int, data_format: Any) -> Layout:
    """The layout behind a dataFormat of this spatial rank."""
    known = LAYOUTS[rank]
    if not isinstance(data_format, str) or data_format not in known:
        raise ValueError(f"Unknown dataFormat {js_text(data_format)} (known in {rank}-D: {', '.join(known)})")
    return known[data_format]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def whole(kernel: str, name: str, value: Any) -> int:
    """A whole number of at most 31 bits; JavaScript does not tell 2.0 from 2, so neither does this."""
    if not is_number(value):
        raise TypeError(f"{kernel}: {name} must hold whole numbers, not {shown(value)}")
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise ValueError(f"{kernel}: {name} must hold whole numbers, not {shown(value)}")
    number = int(value)
    if abs(number) > LARGEST:
        raise ValueError(f"{kernel}: {name} holds {shown(value)}, beyond the largest size, {LARGEST}")
    return number


def as_shape(kernel: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A shape attribute of a given rank; sizes may be 0."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TypeError(f"{kernel}: {name} must be a list of {rank} sizes, not {shown(value)}")
    sizes = tuple(whole(kernel, name, size) for size in value)
    if len(sizes) != rank or min(sizes) < 0:
        raise ValueError(f"{kernel}: {name} is {list(sizes)}; it must be {rank} sizes, none of them negative")
    return sizes


def per_axis(kernel: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for all axes, two as (a, b, 1), or a longer list as it is; at least 1 on every axis that is used."""
    if is_number(value) or (isinstance(value, np.ndarray) and value.ndim == 0):
        entries: list[Any] = [value if is_number(value) else value[()]] * 3
    elif isinstance(value, (list, tuple, np.ndarray)):
        entries = [*value, 1] if len(value) == 2 else list(value)
    else:
        raise TypeError(f"{kernel}: {name} must be a number or a list of them, not {shown(value)}")
    if len(entries) < rank:
        raise ValueError(f"{kernel}: {name} is {shown(value)}, too few for {rank} spatial axes")
    sizes = tuple(whole(kernel, name, entry) for entry in entries[:rank])
    if min(sizes) < 1:
        raise ValueError(f"{kernel}: {name} is {shown(value)}; every entry must be at least 1 ({POSITIVE})")
    return sizes


def rounded(value: Fraction, mode: Any) -> int:
    """An output size made whole: truncated toward zero without a mode."""
    if mode is None or (isinstance(mode, (str, bool, int)) and not mode):  # undefined, or what else JavaScript takes for false
        return math.trunc(value)
    if not isinstance(mode, str) or mode not in ROUNDINGS:
        raise ValueError(f"Unknown roundingMode {js_text(mode)} (known: {', '.join(ROUNDINGS)})")
    return round_size(value, mode)


def _unknown_pad(kernel: str, pad: Any, known: str) -> ValueError:
    return ValueError(f"Unknown padding parameter: {js_text(pad)} ({kernel} takes {known})")


def _explicit_pair(kernel: str, pad: Any, axis: int) -> tuple[int, int]:
    try:
        low, high = pad[axis]
    except (IndexError, TypeError, ValueError):
        raise ValueError(f"{kernel}: pad is {shown(pad)}; explicit pads are one [low, high] pair per tensor axis") from None
    return whole(kernel, "pad", low), whole(kernel, "pad", high)


def _sizes_2d(
    kernel: str, n: Sequence[int], e: Sequence[int], s: Sequence[int], pad: Any, mode: Any, layout: Layout
) -> list[AxisSizes]:
    if is_text(pad, "same"):
        return [(-(-n[a] // s[a]), *same_pads(n[a], e[a], s[a])) for a in range(2)]
    if is_text(pad, "valid"):
        return [(-(-(n[a] - e[a] + 1) // s[a]), 0, 0) for a in range(2)]
    if is_number(pad):
        p = whole(kernel, "pad", pad)
        # A rule of TF.js: a numeric pad sizes both axes with the height's span and stride.
        return [(rounded(Fraction(n[a] - e[0] + 2 * p, s[0]) + 1, mode), p, p) for a in range(2)]
    if isinstance(pad, (list, tuple, np.ndarray)):
        first = 1 if layout == "channels_last" else 2
        pairs = [_explicit_pair(kernel, pad, first + a) for a in range(2)]
        return [(rounded(Fraction(n[a] - e[a] + p + q, s[a]) + 1, mode), p, q) for a, (p, q) in enumerate(pairs)]
    raise _unknown_pad(kernel, pad, "'same', 'valid', a number or one [low, high] pair per tensor axis")


def _sizes_3d(kernel: str, n: Sequence[int], e: Sequence[int], s: Sequence[int], pad: Any, mode: Any) -> list[AxisSizes]:
    if is_text(pad, "same"):
        # Not clamped: a stride beyond the window gives negative pads, and windows that start inside the input.
        return [(-(-n[a] // s[a]), *same_pads(n[a], e[a], s[a], clamp=False)) for a in range(3)]
    if is_text(pad, "valid") or is_number(pad):
        p = 0 if isinstance(pad, str) else whole(kernel, "pad", pad)
        fits = [n[a] + 2 * p >= e[a] for a in range(3)]
        return [(rounded(Fraction(n[a] - e[a] + 2 * p, s[a]) + 1, mode) if fits[a] else 0, p, p) for a in range(3)]
    raise _unknown_pad(kernel, pad, "'same', 'valid' or a number")


def make_window(
    kernel: str,
    input_size: tuple[int, ...],
    taps: tuple[int, ...],
    *,
    strides: Any,
    dilations: Any,
    pad: Any,
    mode: Any,
    layout: Layout = "channels_last",
) -> Window:
    """The window of a kernel's attributes. In 2-D output sizes may come out negative; the callers decide what that means."""
    rank = len(input_size)
    if min(taps) < 1:
        raise ValueError(f"{kernel}: the filter's window is {taps}; every entry must be at least 1")
    check_taps(kernel, taps)
    s, d = per_axis(kernel, "strides", strides, rank), per_axis(kernel, "dilations", dilations, rank)
    e = [span(k, step) for k, step in zip(taps, d, strict=True)]
    if rank == 2:
        sizes = _sizes_2d(kernel, input_size, e, s, pad, mode, layout)
    else:
        sizes = _sizes_3d(kernel, input_size, e, s, pad, mode)
    o, p, q = zip(*sizes, strict=True)
    return Window(input_size, o, taps, s, d, p, q)
