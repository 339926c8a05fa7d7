"""A case of the fuzzer: one call as plain values that survive JSON, and the shapes that follow from them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from pullback.registry import CPU, kernels_for
from pullback.rules import LAYOUT_NAMES
from pullback.window import Window, span

Shape = tuple[int, ...]

# The arguments before the keywords, in order, and what each is: an array of a shape, or a shape, or the window.
ARGUMENTS: dict[str, dict[str, str]] = {
    "conv": {"x": "input", "filter": "filter"},
    "conv_grad_input": {"dy": "output", "filter": "filter", "input_shape": "shape"},
    "conv_grad_filter": {"dy": "output", "x": "input", "filter_shape": "shape"},
    "conv_transpose": {"x": "output", "filter": "filter"},
    "max_pool": {"x": "input", "window": "window"},
    "max_pool_grad": {"dy": "output", "x": "input", "window": "window"},
    "max_pool_grad_from_indices": {"dy": "output", "indices": "indices", "input_shape": "shape"},
    "max_pool_grad_from_winners": {"dy": "output", "winners": "winners", "input_shape": "shape", "window": "window"},
    "max_pool_jvp": {"t": "input", "x": "input", "window": "window"},
    "max_pool_jvp_from_indices": {"t": "input", "indices": "indices"},
    "max_pool_jvp_from_winners": {"t": "input", "winners": "winners", "window": "window"},
    "avg_pool": {"x": "input", "window": "window"},
    "avg_pool_grad": {"dy": "output", "input_shape": "shape", "window": "window"},
}
OPS = tuple(ARGUMENTS)
FLOATS, INTEGERS = ("input", "output", "filter"), ("indices", "winners")

PLACE = ("stride", "padding", "dilation", "layout", "rounding")
CONV_KEYWORDS = (*PLACE, "groups")
KEYWORDS: dict[str, tuple[str, ...]] = {
    "conv": CONV_KEYWORDS,
    "conv_grad_input": CONV_KEYWORDS,
    "conv_grad_filter": CONV_KEYWORDS,
    "conv_transpose": ("stride", "padding", "dilation", "layout", "groups", "output_padding", "output_shape"),
    "max_pool": (*PLACE, "ties", "nan", "storage_order", "return_indices", "return_winners"),
    "max_pool_grad": (*PLACE, "ties", "nan"),
    "max_pool_grad_from_indices": ("layout", "storage_order"),
    "max_pool_grad_from_winners": (*PLACE, "nan"),
    "max_pool_jvp": (*PLACE, "ties", "nan"),
    "max_pool_jvp_from_indices": ("layout", "storage_order"),
    "max_pool_jvp_from_winners": (*PLACE, "nan"),
    "avg_pool": (*PLACE, "count_include_pad", "divisor"),
    "avg_pool_grad": (*PLACE, "count_include_pad", "divisor"),
}


@dataclass(frozen=True)
class Case:
    """One call. The defaults are the plainest values there are: shrinking goes back to them."""

    op: str
    kernel: str | None = None  # None: whichever the dispatch takes
    size: Shape = (1,)
    window: Shape = (1,)
    batch: int = 1
    channels: int = 1  # of a group
    filters: int = 1  # of a group
    groups: int = 1
    layout: str = "channels_last"
    dtype: str = "float32"
    stride: Any = 1
    dilation: Any = 1
    padding: Any = "valid"
    rounding: str = "floor"
    ties: str = "first"
    nan: str = "propagate"
    count_include_pad: bool = False
    divisor: int | None = None
    storage_order: int = 0
    returns: str = "values"
    output_padding: Any = 0
    by_shape: bool = False  # conv_transpose gets output_shape
    source: str = "true"  # of indices and winners: of a maximum, or any numbers
    data: str = "integers"
    seed: int = 0
    memory: Shape | tuple[str, ...] = ()  # of each array, in order; plain where missing
    guard: str | None = None  # all memory of the call right against an inaccessible page on this side
    threads: int | None = None
    again: int | None = None  # threads of a second call, which must give the same bits
    cpus: int | None = None  # number of the one CPU that the call may use
    precision: str = "fast"
    spoiled: tuple[
        tuple[str, str], ...
    ] = ()  # arguments replaced by garbage: name and Python expression, in which `a` is the old

    def text(self) -> str:
        """JSON of what is not as plain as can be."""
        defaults = {field.name: field.default for field in fields(self)}
        return json.dumps({name: value for name, value in asdict(self).items() if value != defaults[name]})

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def is_conv(self) -> bool:
        return self.op.startswith("conv")

    @property
    def geometry(self) -> Window | None:
        """That of the forward op; None where no window fits. conv_transpose's input is the forward op's output."""
        size = self.transposed_size if self.op == "conv_transpose" else self.size
        if size is None:
            return None
        strides = self.window if self.stride is None else each(self.stride, self.rank)
        padding = self.padding if isinstance(self.padding, str) else pairs(self.padding, self.rank)
        rounding: Any = "floor" if self.op == "conv_transpose" else self.rounding
        try:
            return Window.make(size, self.window, strides, each(self.dilation, self.rank), padding, rounding)
        except ValueError:
            return None

    @property
    def transposed_size(self) -> Shape | None:
        strides, dilations = each(self.stride, self.rank), each(self.dilation, self.rank)
        if self.padding in ("same", "same_lower"):
            return tuple(n * s for n, s in zip(self.size, strides, strict=True))
        pads = ((0, 0),) * self.rank if isinstance(self.padding, str) else pairs(self.padding, self.rank)
        sizes = tuple(
            (n - 1) * s + span(k, d) - p - q + more
            for n, s, k, d, (p, q), more in zip(
                self.size, strides, self.window, dilations, pads, each(self.output_padding, self.rank), strict=True
            )
        )
        return sizes if min(sizes) >= 1 else None

    def activation(self, channels: int, size: Shape) -> Shape:
        last = LAYOUT_NAMES[self.layout] == "channels_last"
        return (self.batch, *size, channels) if last else (self.batch, channels, *size)

    def shape(self, role: str) -> Shape:
        """Of an array by what it is; where no window fits, outputs are taken to be one cell."""
        if role == "filter":
            outer = self.groups * self.filters
            last = LAYOUT_NAMES[self.layout] == "channels_last"
            return (*self.window, self.channels, outer) if last else (outer, self.channels, *self.window)
        made = self.groups * (self.filters if self.is_conv else self.channels)
        if self.op == "conv_transpose" and role == "output":
            return self.activation(made, self.size)
        if role == "input":
            size = (self.transposed_size or (1,) * self.rank) if self.op == "conv_transpose" else self.size
            return self.activation(self.groups * self.channels, size)
        geometry = self.geometry
        return self.activation(made, geometry.output_size if geometry else (1,) * self.rank)

    def arrays(self) -> dict[str, str]:
        """Names of the arrays among the arguments, and what each is."""
        return {name: role for name, role in ARGUMENTS[self.op].items() if role in FLOATS + INTEGERS}

    def terms(self) -> int:
        """How many numbers or products one result sums at most, plus one for a division."""
        taps = math.prod(self.window)
        if self.op == "conv":
            return taps * self.channels + 1
        if self.op in ("conv_grad_input", "conv_transpose"):
            return taps * self.filters + 1
        if self.op == "conv_grad_filter" or "indices" in self.op:
            return math.prod(self.shape("output")) + 1
        return taps + 1

    def work(self) -> int:
        """Products, or cells looked at; of a call with garbage, those before it was spoiled."""
        geometry = self.geometry
        outs = math.prod(geometry.output_size if geometry else (1,))
        each_cell = self.channels * self.groups * (self.filters if self.is_conv else 1)
        return max(1, self.batch * each_cell) * max(1, outs) * math.prod(self.window)

    def cells(self) -> int:
        """Elements of the largest array."""
        roles = ("input", "output", "filter") if self.is_conv else ("input", "output")
        return max(math.prod(self.shape(role)) for role in roles)


def each(value: Any, rank: int) -> Shape:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def pairs(padding: Any, rank: int) -> tuple[tuple[int, int], ...]:
    entries = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    return tuple((entry, entry) if isinstance(entry, int) else tuple(entry) for entry in entries)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def from_text(text: str) -> Case:
    """The case that wrote this JSON."""
    return Case(**{name: _tuples(value) for name, value in json.loads(text).items()})


def kernel_op(op: str) -> str:
    """The op under whose name the kernels of this one are registered."""
    return "conv_grad_input" if op == "conv_transpose" else op


@cache
def kernel_names(op: str) -> tuple[str, ...]:
    return tuple(kernel.name for kernel in kernels_for(kernel_op(op), CPU) if kernel.backend == CPU)


def on_each_kernel(case: Case) -> list[Case]:
    """The same call by dispatch and on every cpu kernel by name."""
    return [case, *(replace(case, kernel=name) for name in kernel_names(case.op))]
