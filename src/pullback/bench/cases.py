"""What is timed: the ops, the case list (`cases.json`), and the bytes and flops each op cannot do without."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pullback.rules import Layout
from pullback.window import Window

Kind = Literal["conv", "pool"]

LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")

# Arrays that must be read or written once, for the physical limit; "winners" is one byte per output.
OPS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "max_pool": ("pool", ("x", "y")),
    "max_pool_with_indices": ("pool", ("x", "y", "indices")),
    "max_pool_grad": ("pool", ("dy", "x", "dx")),
    "max_pool_grad_from_indices": ("pool", ("dy", "indices", "dx")),
    "max_pool_grad_from_winners": ("pool", ("dy", "winners", "dx")),
    "max_pair": ("pool", ("x", "y", "dy", "dx")),
    "avg_pool": ("pool", ("x", "y")),
    "avg_pool_grad": ("pool", ("dy", "dx")),
    "avg_pair": ("pool", ("x", "y", "dy", "dx")),
    "conv": ("conv", ("x", "filter", "y")),
    "conv_grad_input": ("conv", ("dy", "filter", "dx")),
    "conv_grad_filter": ("conv", ("dy", "x", "df")),
}

ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
CASE_KEYS: dict[Kind, frozenset[str]] = {
    "conv": frozenset({"name", "rank", "batch", "c_in", "size", "c_out", "kernel", "stride", "padding", "groups", "dilation"}),
    "pool": frozenset({"name", "rank", "batch", "channels", "size", "window", "stride", "padding"}),
}


@dataclass(frozen=True)
class Case:
    """One shape of the list. Padding is the same at both ends of an axis, which every peer can express."""

    name: str
    kind: Kind
    batch: int
    channels_in: int
    channels_out: int
    window: Window
    groups: int = 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of x, channels last."""
        return (self.batch, *self.window.input_size, self.channels_in)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of y, channels last."""
        return (self.batch, *self.window.output_size, self.channels_out)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        return (*self.window.kernel, self.channels_in // self.groups, self.channels_out)

    @property
    def geometry(self) -> dict[str, Any]:
        """Stride, padding and dilation, one integer per spatial axis."""
        return {"stride": self.window.stride, "padding": self.window.pad_low, "dilation": self.window.dilation}

    def lifted(self) -> Case:
        """A 1-D case as a 2-D one of height 1, for systems without a 1-D op; others as they are."""
        w = self.window
        if w.rank != 1:
            return self
        n, o, k, s, d = ((1, *sizes) for sizes in (w.input_size, w.output_size, w.kernel, w.stride, w.dilation))
        return replace(self, window=Window(n, o, k, s, d, (0, *w.pad_low), (0, *w.pad_high)))


@dataclass(frozen=True)
class Task:
    """One line of the result table: an op on a case, in a dtype and a layout."""

    op: str
    case: Case
    dtype: str
    layout: Layout

    @property
    def label(self) -> str:
        return f"{self.op} {self.case.name} {self.layout} {self.dtype}"


def _per_axis(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def parse_case(kind: Kind, entry: dict[str, Any]) -> Case:
    """A case from its JSON object; ValueError for keys or sizes that do not fit."""
    name = entry.get("name", "without a name")
    if set(entry) != CASE_KEYS[kind]:
        raise ValueError(f"case {name!r}: a {kind} case has the keys {sorted(CASE_KEYS[kind])}, not {sorted(entry)}")
    rank = entry["rank"]
    kernel = tuple(entry["kernel" if kind == "conv" else "window"])
    stride, pads = _per_axis(entry["stride"], rank), _per_axis(entry["padding"], rank)
    dilation = _per_axis(entry.get("dilation", 1), rank)
    axes = (entry["size"], kernel, stride, pads, dilation)
    if any(len(axis) != rank for axis in axes):
        raise ValueError(f"case {name!r}: rank {rank} needs {rank} entries for size, window, stride, padding and dilation")
    try:
        window = Window.make(entry["size"], kernel, stride, dilation, [(p, p) for p in pads])
    except ValueError as error:
        raise ValueError(f"case {name!r}: {error}") from None
    if kind == "pool":
        return Case(name, kind, entry["batch"], entry["channels"], entry["channels"], window)
    c_in, c_out, groups = entry["c_in"], entry["c_out"], entry["groups"]
    if c_in % groups or c_out % groups:
        raise ValueError(f"case {name!r}: {groups} groups do not divide {c_in} input and {c_out} output channels")
    return Case(name, kind, entry["batch"], c_in, c_out, window, groups)


def load_cases(path: Path | None = None) -> list[Case]:
    """The published list, or another file of the same form."""
    source = files("pullback.bench").joinpath("cases.json") if path is None else path
    lists = json.loads(source.read_text())
    if not isinstance(lists, dict) or not set(lists) <= set(CASE_KEYS):
        raise ValueError(f"a case list is an object with the lists {sorted(CASE_KEYS)}")
    cases = [parse_case(kind, entry) for kind in CASE_KEYS for entry in lists.get(kind, [])]
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise ValueError(f"case names must differ: {sorted(n for n in set(names) if names.count(n) > 1)} appear twice")
    return cases


def bytes_moved(task: Task) -> int:
    """Bytes that must move: every input array read once, every output written once."""
    return sum(_array_bytes(task).values())


def bytes_written(task: Task) -> int:
    """Of these, the bytes of the outputs."""
    sizes = _array_bytes(task)
    outputs = {"y", "dx", "df"} | ({"indices"} if "y" in sizes else set())  # a gradient reads its indices
    return sum(size for array, size in sizes.items() if array in outputs)


def _array_bytes(task: Task) -> dict[str, int]:
    case, item = task.case, ITEM_BYTES[task.dtype]
    x, y, f = (math.prod(shape) for shape in (case.input_shape, case.output_shape, case.filter_shape))
    sizes = {"x": x * item, "dx": x * item, "y": y * item, "dy": y * item, "filter": f * item, "df": f * item}
    sizes |= {"indices": y * 8, "winners": y}
    return {array: sizes[array] for array in OPS[task.op][1]}


def flop(task: Task) -> int:
    """Floating-point operations of a direct convolution, two per tap that falls inside the input; 0 for pooling."""
    case = task.case
    if case.kind == "pool":
        return 0
    taps = math.prod(int(case.window.axis_divisor(axis, "valid").sum()) for axis in range(case.window.rank))
    return 2 * case.batch * taps * (case.channels_in // case.groups) * case.channels_out
