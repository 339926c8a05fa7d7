"""Small convolution problems around the vector width, as calls of every convolution op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from cpu_calls import LAYOUTS, shaped

import pullback as pb
from pullback.cpu.engine.machine import machine

CONV_OPS = ("conv", "conv_grad_input", "conv_grad_filter")
GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"kernel": (1, 1)},
    {"kernel": (3, 3), "padding": 1},
    {"kernel": (3, 2), "padding": [(2, 0), (1, 3)], "stride": 2},
    {"kernel": (1, 1), "stride": (2, 3)},
    {"kernel": (2, 3), "padding": 2, "stride": (1, 2), "dilation": 2},
    {"kernel": (2, 2), "padding": [(-1, 1), (0, -1)]},
)

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def conv_arguments(
    layout: str, batch: int, c_in: int, c_out: int, size: tuple[int, ...], *, kernel: tuple[int, ...], groups: int = 1,
    dtype: Any = np.float32, **keywords: Any,
) -> list[Call]:  # fmt: skip
    """(op, arguments, keywords) of the three ops on small whole numbers."""
    rng = np.random.default_rng([c_in, c_out, *size])
    x = rng.integers(-4, 5, shaped(layout, batch, c_in, *size)).astype(dtype)
    shape = (*kernel, c_in // groups, c_out) if layout == "channels_last" else (c_out, c_in // groups, *kernel)
    f = rng.integers(-3, 4, shape).astype(dtype)
    keywords |= {"layout": layout, "groups": groups}
    with pb.backend("reference"):
        y_shape = pb.conv(x, f, **keywords).shape
    dy = rng.integers(-4, 5, y_shape).astype(dtype)
    calls = ((x, f), (dy, f, x.shape), (dy, x, f.shape))
    return [(op, arguments, keywords) for op, arguments in zip(CONV_OPS, calls, strict=True)]


def with_infinity(arguments: tuple[Any, ...], op: str) -> tuple[Any, ...]:
    """The arguments with an infinite weight, or an infinity in dy of a filter gradient: some kernels have others for them."""
    place = 0 if op == "conv_grad_filter" else 1
    changed = arguments[place].copy()
    changed.flat[changed.size // 2] = np.inf
    return (*arguments[:place], changed, *arguments[place + 1 :])


def lanes() -> int:
    return machine().vector_bytes // 4


def small_calls(dtype: Any = np.float32) -> Iterator[Call]:
    """Each of channels in, channels out and columns in turn around the vector width; one image and many."""
    v = lanes()
    for layout in LAYOUTS:
        for geometry in GEOMETRIES:
            for size in (1, v - 1, v + 1, 2 * v + 1):
                for c_in, c_out, cols in ((size, 5, 6), (3, size, 6), (v + 2, v + 3, size + 3)):
                    yield from conv_arguments(layout, 1, c_in, c_out, (5, cols), dtype=dtype, **geometry)
            yield from conv_arguments(layout, 9, v + 3, 2 * v, (6, 5), dtype=dtype, **geometry)
            yield from conv_arguments(layout, 2, 6, 4 * v + 2, (7, 6), groups=2, dtype=dtype, **geometry)
        # Rows so long, of so many channels, that only their ends are padded: these are read in place.
        yield from conv_arguments(layout, 1, 2 * v + 1, 2 * v + 3, (3, 22), kernel=(3, 3), padding=1, dtype=dtype)
        # Strides that no second window follows, and cells that no window reads.
        yield from conv_arguments(layout, 1, 3, 4, (2, 9), kernel=(1, 1), stride=(2, 9), dtype=dtype)
        yield from conv_arguments(layout, 1, v, v, (3, 5), kernel=(2, 3), stride=(3, 4), dtype=dtype)
