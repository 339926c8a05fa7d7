"""Draws random cases: shapes of the kinds that kernels are made for and of no kind at all, every option, and garbage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .cases import ARGUMENTS, KEYWORDS, OPS, Case, each
from .garbage import GARBAGE
from .program import EXACT, MEMORY, ROUNDED

MOST_WORK, MOST_CELLS = 4_000_000, 400_000
HUGE = 2**31 - 1  # the largest size there is
MOST_DENSE_WORK = 60_000_000  # where Winograd pays, now and then
# Around the vector widths of every machine, so that a seed means the same cases on all of them.
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65)
LAYOUT_ALIASES = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
SURROUNDINGS = ("dtype", "data", "seed", "memory", "guard", "threads", "again", "cpus", "precision", "spoiled")
THREADS = (1, 2, 3, 5, 8, 16)

CONV_KINDS = {"any": 8, "dense": 2, "depthwise": 3, "grouped": 2, "pointwise": 1, "small image": 2, "long": 1, "many taps": 1}
POOL_KINDS = {"any": 8, "whole": 2, "disjoint": 3, "channels": 3, "long": 1, "many taps": 1}


class Draw:
    """One stream of random cases."""

    def __init__(self, seed: int, ops: Sequence[str] = OPS, garbage: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.ops, self.garbage = tuple(ops), garbage

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def kind(self, weights: dict[str, int]) -> str:
        total = sum(weights.values())
        return str(self.rng.choice(list(weights), p=[weight / total for weight in weights.values()]))

    def number(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def sometimes(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def per_axis(self, rank: int, low: int, high: int) -> Any:
        """One number for all axes, or one for each."""
        if self.sometimes(0.5):
            return self.number(low, high)
        return tuple(self.number(low, high) for _ in range(rank))

    def case(self) -> Case:
        """The next case; its kernel is left open."""
        case = self._conv() if (op := self.one(self.ops)).startswith("conv") else self._pool(op)
        case = replace(case, op=op)
        if "input_shape" in ARGUMENTS[op] and "indices" not in op and self.sometimes(0.002):
            return _only_what_counts(self._huge(case))
        case = self._emptied(self._bounded(self._fitted(case)))
        case = self._spoiled(case) if self.sometimes(self.garbage) else self._surroundings(case)
        return _only_what_counts(case)

    def _place(self, rank: int, window: tuple[int, ...]) -> dict[str, Any]:
        """stride, dilation, padding, rounding and layout"""
        widest = max(window)
        padding: Any = self.one(("valid", "same", "same_lower", "number", "numbers", "pairs", "pairs", "far"))
        if padding in ("number", "numbers"):
            padding = self.number(-1, 3) if padding == "number" else tuple(self.number(-1, 3) for _ in range(rank))
        elif padding in ("pairs", "far"):
            low, high = (-2, 3) if padding == "pairs" else (0, min(2 * widest + 2, 40))
            padding = tuple((self.number(low, high), self.number(low, high)) for _ in range(rank))
        alias = LAYOUT_ALIASES[rank]
        return {
            "stride": 1 if self.sometimes(0.4) else self.per_axis(rank, 1, self.one((2, 3, 5))),
            "dilation": 1 if self.sometimes(0.6) else self.per_axis(rank, 1, self.one((2, 3))),
            "padding": padding,
            "rounding": self.one(("floor", "floor", "ceil", "round")),
            "layout": self.one(alias) if self.sometimes(0.1) else self.one(("channels_last", "channels_first")),
        }

    def _sizes(self, rank: int) -> tuple[int, ...]:
        """Small, one axis around a vector width."""
        sizes = [self.number(1, (40, 9, 6)[rank - 1]) for _ in range(rank)]
        if self.sometimes(0.5):
            sizes[self.number(0, rank - 1)] = self.one(WIDTHS)
        return tuple(sizes)

    def _conv(self) -> Case:
        kind = self.kind(CONV_KINDS)
        rank = self.one((1, 2, 2, 2, 3))
        window = tuple(self.number(1, 4) for _ in range(rank))
        made: dict[str, Any] = {
            "size": self._sizes(rank), "batch": self.number(1, 3),
            "channels": self.one(WIDTHS[:12]), "filters": self.one(WIDTHS[:12]),
            "groups": 1 if self.sometimes(0.6) else self.number(2, 4),
        }  # fmt: skip
        if kind == "dense":
            window = tuple(self.one((2, 3, 3, 3, 5)) for _ in range(rank))
            most = (200, 24, 9)[rank - 1]
            made |= {"size": tuple(self.number(4, most) for _ in range(rank)), "groups": 1, "batch": self.number(1, 4)}
            made |= {"channels": self.one(WIDTHS[8:]), "filters": self.one(WIDTHS[8:])}
        elif kind in ("depthwise", "grouped"):
            each_in, each_out = (1, self.one((1, 1, 2))) if kind == "depthwise" else (self.number(1, 8), self.number(1, 8))
            made |= {"channels": each_in, "filters": each_out, "groups": self.one(WIDTHS[1:])}
            window = self.one(((3,) * rank, (5,) * rank, window))
        elif kind == "pointwise":
            window = (1,) * rank
        elif kind == "small image":
            made |= {
                "size": tuple(self.number(1, 4) for _ in range(rank)),
                "channels": self.one(WIDTHS[10:]),
                "filters": self.one(WIDTHS[10:]),
            }
        elif kind == "long":
            sizes = [1] * rank
            sizes[self.number(0, rank - 1)] = self.number(100, 20_000)
            made |= {"size": tuple(sizes), "channels": self.number(1, 3), "filters": self.number(1, 3)}
        elif kind == "many taps":
            window = tuple(self.number(1, (300, 17, 6)[rank - 1]) for _ in range(rank))
            made |= {"channels": self.number(1, 4), "filters": self.number(1, 4)}
        place = self._place(rank, window)
        if kind == "dense" and self.sometimes(0.8):
            place |= {"stride": 1, "dilation": 1, "padding": self.one(("same", "valid", 1))}
        elif kind in ("depthwise", "pointwise") and self.sometimes(0.5):
            place |= {"stride": self.number(1, 2), "dilation": 1, "padding": self.one(("same", window[0] // 2))}
        return Case("conv", window=window, **made, **place)

    def _pool(self, op: str) -> Case:
        kind = self.kind(POOL_KINDS)
        rank = self.one((1, 2, 2, 2, 3))
        window = tuple(self.number(1, 4) for _ in range(rank))
        made: dict[str, Any] = {"size": self._sizes(rank), "batch": self.number(1, 3), "channels": self.one(WIDTHS[:12])}
        if kind == "channels":
            made["channels"] = self.one((*WIDTHS[8:], 128, 129, 200))
        elif kind == "long":
            sizes = [1] * rank
            sizes[self.number(0, rank - 1)] = self.number(100, 20_000)
            made |= {"size": tuple(sizes), "channels": self.number(1, 3)}
        elif kind == "many taps":
            window = self.one(((255,), (256,), (257,), (16, 16), (15, 17), (1, 257), (4, 8, 8), (3, 5, 17), (40, 40), (300, 1)))
            rank = len(window)
            made |= {"size": tuple(k + self.number(0, 6) for k in window), "channels": self.number(1, 4)}
            if self.sometimes(0.05):
                rank, window, made["size"] = 1, (self.one((2**16 - 1, 2**16)),), (2**16 + 5,)
        place = self._place(rank, window)
        if kind == "whole":
            window, place["padding"], place["dilation"] = made["size"], "valid", 1
        elif kind == "disjoint" or self.sometimes(0.2):
            place["stride"] = None
        return Case(
            op, window=window, **made, **place, ties=self.one(("first", "last")), nan=self.one(("propagate", "ignore")),
            count_include_pad=self.sometimes(0.4), divisor=self.number(1, 20) if self.sometimes(0.1) else None,
            storage_order=self.number(0, 1),
            returns=self.one(("values", "indices", "winners")), source=self.one(("true", "true", "any", "narrow", "wrong")),
        )  # fmt: skip

    def _huge(self, case: Case) -> Case:
        """One small output of an input that no memory holds: a MemoryError, at once."""
        size = (HUGE,) * case.rank
        rest = {"batch": 1, "channels": 4, "filters": 1, "groups": 1, "source": "any"}
        return replace(case, size=size, stride=HUGE, dilation=1, padding="same", rounding="floor", **rest)

    def _fitted(self, case: Case) -> Case:
        """Mostly with axes long enough for a window; conv_transpose's own keywords."""
        if case.op == "conv_transpose":
            extra = tuple(self.number(0, s - 1) for s in each(case.stride, case.rank)) if self.sometimes(0.4) else 0
            if case.padding in ("same", "same_lower"):
                extra = 0
            return replace(case, output_padding=extra, by_shape=self.sometimes(0.3))
        for _ in range(40):
            if case.geometry is not None or self.sometimes(0.01):
                break
            case = replace(case, size=tuple(n + self.number(0, 3) for n in case.size))
        return case

    def _bounded(self, case: Case) -> Case:
        """Batch, channels and sizes halved until the work is small."""
        most = MOST_DENSE_WORK if self.sometimes(0.01) else MOST_WORK
        while case.work() > most or case.cells() > MOST_CELLS:
            numbers = {"batch": case.batch, "channels": case.channels, "groups": case.groups, "size": max(case.size)}
            if case.is_conv:
                numbers["filters"] = case.filters
            name = max(numbers, key=lambda n: numbers[n])
            if numbers[name] == 1:
                return replace(case, dilation=1, padding="same", window=(1,) * case.rank)
            if name == "size":
                axis = case.size.index(max(case.size))
                sizes = tuple(n // 2 if place == axis else n for place, n in enumerate(case.size))
                case = replace(case, size=sizes)
                if case.geometry is None:
                    case = replace(case, window=tuple(min(n, k) for n, k in zip(sizes, case.window, strict=True)), dilation=1)
                    case = case if case.geometry is not None else replace(case, padding="same")
            else:
                case = replace(case, **{name: numbers[name] // 2})
        return case

    def _emptied(self, case: Case) -> Case:
        if not self.sometimes(0.05):
            return case
        name = self.one(("batch", "channels", "filters", "size", "size"))
        if name != "size":
            return replace(case, **{name: 0})
        axis = self.number(0, case.rank - 1)
        padding = case.padding if self.sometimes(0.5) else self.one(("same", "same_lower"))  # which no window need fit
        return replace(case, padding=padding, size=tuple(0 if place == axis else n for place, n in enumerate(case.size)))

    def _surroundings(self, case: Case) -> Case:
        """Data, memory, threads."""
        data = self.one((*EXACT, "integers", "integers", "integers", *ROUNDED, "reals"))
        count = len(case.arrays())
        memory: tuple[str, ...] = ()
        guard = self.one(("above", "below")) if self.sometimes(0.15) else None
        if guard is None and self.sometimes(0.4):
            memory = tuple(self.one(("plain", *MEMORY)) for _ in range(count))
        return replace(
            case, dtype=self.one(("float32", "float32", "float64", "float16", "bfloat16")), data=data, seed=self.number(0, 999_999),
            memory=memory, guard=guard, threads=self.one(THREADS) if self.sometimes(0.7) else None,
            again=self.one(THREADS) if self.sometimes(0.3) and guard is None else None,
            cpus=self.number(0, 7) if self.sometimes(0.05) else None,
            precision="exact" if self.sometimes(0.1) else "fast",
        )  # fmt: skip

    def _spoiled(self, case: Case) -> Case:
        """A small call with one argument, now and then two, replaced by garbage."""
        most = 2 if case.op == "conv_transpose" else 9  # a stride is garbage too, and the output as many times as large
        small = {name: min(getattr(case, name), 4) for name in ("batch", "channels", "filters", "groups")}
        case = replace(case, **small, size=tuple(min(n, most) for n in case.size), seed=self.number(0, 999), by_shape=False)
        names = [name for name in (*ARGUMENTS[case.op], *KEYWORDS[case.op], "no_such_keyword") if name in GARBAGE]
        chosen = self.rng.permutation(names)[: 2 if self.sometimes(0.2) else 1].tolist()
        return replace(case, spoiled=tuple((name, self.one(GARBAGE[name])) for name in chosen))


def _only_what_counts(case: Case) -> Case:
    """Parameters that the op does not have at their defaults, so that equal calls are equal cases."""
    heard = {"op", "kernel", "size", "window", "batch", "channels", *KEYWORDS[case.op], *SURROUNDINGS}
    if "indices" in case.op or "winners" in case.op:  # those of a maximum have its geometry
        heard |= {*KEYWORDS["max_pool_grad"], "source"}
    if case.is_conv:
        heard |= {"filters", "by_shape"}
    if case.op == "max_pool":
        heard |= {"returns"}
    return replace(case, **{field.name: field.default for field in fields(Case) if field.name not in heard})
