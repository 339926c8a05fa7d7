"""What is timed: the ops, the case list (`cases.json`), and the bytes and flops each op cannot do without."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pullback.ops.arguments import as_int, make_window, per_axis
from pullback.rules import Layout
from pullback.shown import shown
from pullback.window import Window

Kind = Literal["conv", "pool"]

LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")

# Arrays that must be read or written once, for the physical limit.
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
# What a case of a list must say; what it need not, and what it then is (a pooling stride of None: the window, as in the ops).
# Its name says what it is where it has none, and its rank follows from the size.
NEEDED: dict[Kind, tuple[str, ...]] = {"conv": ("size", "c_in", "c_out", "kernel"), "pool": ("size", "channels", "window")}
DEFAULTS: dict[Kind, dict[str, Any]] = {
    "conv": {"batch": 1, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    "pool": {"batch": 1, "stride": None, "padding": 0, "dilation": 1},
}


@dataclass(frozen=True)
class Case:
    """One shape. Padding is the same at both ends of an axis in the published list; not every peer can express another.

    `families`: of the ops that fit its kind, those whose names begin so.
    """

    name: str
    kind: Kind
    batch: int
    channels_in: int
    channels_out: int
    window: Window
    groups: int = 1
    families: tuple[str, ...] = ("conv", "max", "avg")

    def has(self, op: str) -> bool:
        """Whether an op is timed on it."""
        return OPS[op][0] == self.kind and op.startswith(self.families)

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
        """Stride, padding and dilation, one entry per spatial axis."""
        return {"stride": self.window.stride, "padding": self.pads, "dilation": self.window.dilation}

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """(low, high) of each spatial axis."""
        return tuple(zip(self.window.pad_low, self.window.pad_high, strict=True))

    @property
    def shape_text(self) -> str:
        """The shape in short, channels last: 4x30x30x24-3x3-48-s2-p1 is 48 filters of 3x3 at stride 2, padded by 1."""
        w = self.window
        parts = [_times(self.input_shape), _times(w.kernel)]
        if self.kind == "conv":
            parts.append(str(self.channels_out))
        if self.kind == "pool" or set(w.stride) != {1}:
            parts.append(f"s{_times(w.stride, shorten=True)}")
        if any(w.pad_low + w.pad_high):
            pads = [f"{low}" if low == high else f"{low}:{high}" for low, high in self.pads]
            parts.append(f"p{_times(pads, shorten=True)}")
        if set(w.dilation) != {1}:
            parts.append(f"d{_times(w.dilation, shorten=True)}")
        return "-".join([*parts, *([f"g{self.groups}"] if self.groups > 1 else [])])

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


def _times(values: Sequence[object], shorten: bool = False) -> str:
    """Sizes as they are written on the command line; one for all axes where it is the same and may be shortened."""
    return "x".join(map(str, values[:1] if shorten and len(set(values)) == 1 else values))


def parse_case(kind: Kind, entry: dict[str, Any], where: str = "") -> Case:
    """A case from its JSON object; ValueError that names the case (or `where` it comes from) and the key that does not fit."""
    where = where or f"case {entry.get('name', 'without a name')!r}"
    known = (*NEEDED[kind], *DEFAULTS[kind], "name", "rank")
    for key in entry:
        if key not in known:
            raise ValueError(f"{where}: a {kind} case has no key {shown(key)}; the keys are {', '.join(known)}")
    for key in NEEDED[kind]:
        if key not in entry:
            raise ValueError(f"{where}: the key {key!r} is missing; a {kind} case needs {', '.join(NEEDED[kind])}")
    try:
        return _case(kind, {**DEFAULTS[kind], **entry}, where)
    except TypeError as error:
        raise ValueError(error) from None


def _case(kind: Kind, entry: dict[str, Any], where: str) -> Case:
    def count(key: str) -> int:
        number = as_int(where, key, entry[key])
        if number < 1:
            raise ValueError(f"{where}: {key} is {number}; it must be at least 1")
        return number

    if not isinstance(entry["size"], (list, tuple)) or not 1 <= len(entry["size"]) <= 3:
        raise ValueError(f"{where}: size is {shown(entry['size'])}; it must be a list of 1, 2 or 3 sizes")
    rank = len(entry["size"])
    if entry.get("rank", rank) != rank:
        raise ValueError(f"{where}: rank is {shown(entry['rank'])} but size has {rank} entries")
    size = per_axis(where, "size", entry["size"], rank)
    taps = "kernel" if kind == "conv" else "window"
    kernel = per_axis(where, taps, entry[taps], rank)
    stride = kernel if entry["stride"] is None else entry["stride"]
    window = make_window(where, size, kernel, stride, entry["dilation"], entry["padding"], "floor")
    if kind == "pool":
        case = Case("", kind, count("batch"), count("channels"), count("channels"), window)
    else:
        c_in, c_out, groups = count("c_in"), count("c_out"), count("groups")
        if c_in % groups or c_out % groups:
            raise ValueError(f"{where}: {groups} groups do not divide {c_in} input and {c_out} output channels")
        case = Case("", kind, count("batch"), c_in, c_out, window, groups)
    name = entry.get("name", case.shape_text)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is {shown(name)}; it must be a text")
    return replace(case, name=name)


def load_cases(path: Path | None = None) -> list[Case]:
    """The published list, or another file of the same form."""
    source = files("pullback.bench").joinpath("cases.json") if path is None else path
    lists = json.loads(source.read_text())
    if not isinstance(lists, dict) or not set(lists) <= set(NEEDED) or not all(isinstance(a, list) for a in lists.values()):
        raise ValueError(f"{path or 'the case list'}: a case list is an object with the lists {' and '.join(NEEDED)}")
    cases = []
    for kind in NEEDED:
        for number, entry in enumerate(lists.get(kind, []), 1):
            if not isinstance(entry, dict):
                raise ValueError(f"{kind} case {number} is {shown(entry)}; a case is an object")
            cases.append(parse_case(kind, entry, "" if "name" in entry else f"{kind} case {number} (without a name)"))
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
    sizes |= {"indices": y * 8, "winners": y * np.min_scalar_type(case.window.tap_count).itemsize}
    return {array: sizes[array] for array in OPS[task.op][1]}


def flop(task: Task) -> int:
    """Floating-point operations of a direct convolution, two per tap that falls inside the input; 0 for pooling."""
    case = task.case
    if case.kind == "pool":
        return 0
    taps = math.prod(int(case.window.axis_divisor(axis, "valid").sum()) for axis in range(case.window.rank))
    return 2 * case.batch * taps * (case.channels_in // case.groups) * case.channels_out
