"""The attributes of pooling and convolution nodes, parsed and checked with ONNX Runtime's conditions and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.ops.arguments import as_entries, as_int
from pullback.shown import shown

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class WindowAttributes:
    """What every sliding window has; `pads` is one (head, tail) pair per axis and only counts under auto_pad NOTSET."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    auto_pad: str


@dataclass(frozen=True)
class PoolAttributes(WindowAttributes):
    ceil_mode: bool
    count_include_pad: bool
    storage_order: int


def _ints(op: str, attrs: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list attribute; empty where it is absent."""
    value = attrs.get(name, ())
    entries = as_entries(value)
    if entries is None:
        raise TypeError(f"{op}: {name} must be a list of integers, not {shown(value)}")
    return tuple(as_int(op, name, number) for number in entries)


def _flag(op: str, attrs: Mapping[str, Any], name: str) -> bool:
    value = attrs.get(name, 0)
    return value if isinstance(value, bool) else as_int(op, name, value) != 0


def _auto_pad(op: str, attrs: Mapping[str, Any]) -> str:
    value = attrs.get("auto_pad", "NOTSET")
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(text, str) and text == "":
        return "NOTSET"
    if not isinstance(text, str) or text not in AUTO_PADS:
        raise ValueError(f"{op}: Unknown AutoPadType String: auto_pad is {shown(value)}, not one of {', '.join(AUTO_PADS)}")
    return str(text)


def _positive(op: str, name: str, values: tuple[int, ...]) -> tuple[int, ...]:
    if any(value < 1 for value in values):
        raise ValueError(f"{op}: {name} is {list(values)}; every entry must be at least 1")
    return values


def _window_fields(op: str, attrs: Mapping[str, Any], kernel_shape: tuple[int, ...]) -> dict[str, Any]:
    """strides, dilations, pads and auto_pad for a kernel; ones and zeros where absent or empty."""
    rank = len(kernel_shape)
    strides = _positive(op, "strides", _ints(op, attrs, "strides") or (1,) * rank)
    dilations = _positive(op, "dilations", _ints(op, attrs, "dilations") or (1,) * rank)
    pads = _ints(op, attrs, "pads") or (0,) * (2 * rank)
    given = f"kernel_shape is {list(kernel_shape)}"
    if len(strides) != rank:
        raise ValueError(f"{op}: strides_.size() == kernel_shape_.size() was false. {given}, strides {list(strides)}")
    if len(dilations) != rank:
        raise ValueError(f"{op}: Dilations dimensions should match kernel shape. {given}, dilations {list(dilations)}")
    if len(pads) != 2 * rank:
        raise ValueError(f"{op}: pads_.size() == 2 * kernel_shape_.size() was false. {given}, pads {list(pads)}")
    if min(pads, default=0) < 0:
        raise ValueError(f"{op}: pads is {list(pads)}; no entry may be negative")
    return {
        "kernel_shape": kernel_shape,
        "strides": strides,
        "dilations": dilations,
        "pads": tuple(zip(pads[:rank], pads[rank:], strict=True)),
        "auto_pad": _auto_pad(op, attrs),
    }


def pool_attributes(op: str, attrs: Mapping[str, Any], *, pads_below_kernel: bool = True) -> PoolAttributes:
    """The attributes of a pool or its gradient; a pad as wide as the window would make windows of padding only."""
    kernel_shape = _positive(op, "kernel_shape", _ints(op, attrs, "kernel_shape"))
    if not kernel_shape:
        raise ValueError(f"{op}: No kernel shape is set.")
    fields = _window_fields(op, attrs, kernel_shape)
    if pads_below_kernel and any(max(pair) >= k for pair, k in zip(fields["pads"], kernel_shape, strict=True)):
        raise ValueError(
            f"{op}: Pad should be smaller than kernel. kernel_shape is {list(kernel_shape)}, pads {list(attrs['pads'])}"
        )
    return PoolAttributes(
        **fields,
        ceil_mode=_flag(op, attrs, "ceil_mode"),
        count_include_pad=_flag(op, attrs, "count_include_pad"),
        storage_order=as_int(op, "storage_order", attrs.get("storage_order", 0)),
    )


def row_or_column_major(op: str, attrs: Mapping[str, Any]) -> int:
    """storage_order, which is 0 or 1."""
    order = as_int(op, "storage_order", attrs.get("storage_order", 0))
    if order not in (0, 1):
        raise ValueError(f"{op}: storage_order is {order}; it must be 0 (row-major) or 1 (column-major)")
    return order


def _braces(values: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def conv_attributes(op: str, attrs: Mapping[str, Any], x: tuple[int, ...], w: tuple[int, ...]) -> tuple[WindowAttributes, int]:
    """The window and the group count of a convolution, checked against the shapes of X and W."""
    shapes = f"X: {_braces(x)} W: {_braces(w)}"
    if len(x) != len(w):
        raise ValueError(f"{op}: X num_dims does not match W num_dims. {shapes}")
    if len(x) not in (3, 4, 5):
        raise ValueError(f"{op}: X must have 3, 4 or 5 axes: batch, channels and 1, 2 or 3 spatial ones. {shapes}")
    group = as_int(op, "group", attrs.get("group", 1))
    if group < 1:
        raise ValueError(f"{op}: group is {group}; it must be at least 1")
    if x[1] != w[1] * group:
        raise ValueError(
            f"{op}: Input channels C is not equal to kernel channels * group. "
            f"C: {x[1]} kernel channels: {w[1]} group: {group} ({shapes})"
        )
    if w[0] % group:
        raise ValueError(f"{op}: Output channels M is not divisible by group. M: {w[0]} group: {group} ({shapes})")
    kernel_shape = _ints(op, attrs, "kernel_shape") or w[2:]
    if len(kernel_shape) != len(w) - 2:
        raise ValueError(
            f"{op}: kernel_shape num_dims is not compatible with W num_dims. "
            f"kernel_shape: {_braces(kernel_shape)} W: {_braces(w)}"
        )
    if kernel_shape != w[2:]:
        raise ValueError(
            f"{op}: kernel_shape is not compatible with W shape. "
            f"kernel_shape: {_braces(kernel_shape)} W: {_braces(w)} channels_last: 0"
        )
    fields = _window_fields(op, attrs, _positive(op, "kernel_shape", kernel_shape))
    if fields["auto_pad"] != "NOTSET" and _ints(op, attrs, "pads"):
        raise ValueError(
            f"{op}: A Conv/ConvTranspose node has both 'auto_pad' and 'pads' attributes "
            f"({fields['auto_pad']} and {list(attrs['pads'])})"
        )
    return WindowAttributes(**fields), group
