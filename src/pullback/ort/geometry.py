"""From ONNX attributes to a Window: auto_pad, ceil_mode and output sizes as ONNX Runtime computes them, in exact integers."""

from __future__ import annotations

from pullback.ops.arguments import check_taps
from pullback.ort.attributes import PoolAttributes, WindowAttributes
from pullback.window import Window, span


def _same_pads(n: int, k: int, s: int, *, lower: bool) -> tuple[int, int]:
    """Head and tail pad for an output of ceil(n / s), from the undilated window.

    Not clamped at 0: where the stride exceeds the window the pads go negative and windows start inside the input. The half is
    rounded towards zero, as C++ divides.
    """
    total = (-(-n // s) - 1) * s + k - n
    twice_head = total + lower
    head = twice_head // 2 if twice_head >= 0 else -(-twice_head // 2)
    return head, total - head


def _pads(attrs: WindowAttributes, input_size: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if attrs.auto_pad == "NOTSET":
        return attrs.pads
    if attrs.auto_pad == "VALID":
        return ((0, 0),) * len(input_size)
    lower = attrs.auto_pad == "SAME_LOWER"
    axes = zip(input_size, attrs.kernel_shape, attrs.strides, strict=True)
    return tuple(_same_pads(n, k, s, lower=lower) for n, k, s in axes)


def _count(n: int, e: int, s: int, p: int, q: int, *, ceil: bool, keep_past_end: bool) -> int:
    """Windows along an axis. A last one that starts past input and head pad exists only by rounding up; it is dropped."""
    room = n + p + q - e
    o = (-(-room // s) if ceil else room // s) + 1
    if ceil and not keep_past_end and (o - 1) * s >= n + p:
        o -= 1
    return o


def _window(op: str, attrs: WindowAttributes, input_size: tuple[int, ...], *, ceil: bool, keep_past_end: bool) -> Window:
    check_taps(op, attrs.kernel_shape)
    pads = _pads(attrs, input_size)
    spans = [span(k, d) for k, d in zip(attrs.kernel_shape, attrs.dilations, strict=True)]
    outs = tuple(
        _count(n, e, s, p, q, ceil=ceil, keep_past_end=keep_past_end)
        for n, e, s, (p, q) in zip(input_size, spans, attrs.strides, pads, strict=True)
    )
    if min(outs) < 1:
        raise ValueError(
            f"{op}: the kernel {list(attrs.kernel_shape)} with dilations {list(attrs.dilations)} and pads {list(pads)} "
            f"does not fit into the input {list(input_size)}: the output would be {list(outs)}"
        )
    lows, highs = (tuple(pair[i] for pair in pads) for i in (0, 1))
    return Window(input_size, outs, attrs.kernel_shape, attrs.strides, attrs.dilations, lows, highs)


def pool_window(op: str, attrs: PoolAttributes, input_size: tuple[int, ...], *, keep_past_end: bool = False) -> Window:
    """The window of a pool. `keep_past_end`: under ceil_mode keep a last window that starts past the input, as 1.19.2 did."""
    return _window(op, attrs, input_size, ceil=attrs.ceil_mode, keep_past_end=keep_past_end)


def conv_window(op: str, attrs: WindowAttributes, input_size: tuple[int, ...]) -> Window:
    if attrs.auto_pad.startswith("SAME") and any(d != 1 for d in attrs.dilations):
        raise ValueError(
            f"{op}: Dilation not supported for AutoPadType::SAME_UPPER or AutoPadType::SAME_LOWER. "
            f"dilations is {list(attrs.dilations)}"
        )
    return _window(op, attrs, input_size, ceil=False, keep_past_end=False)
