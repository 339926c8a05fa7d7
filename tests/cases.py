"""The cases of the op tests: all pairs of the parameter values, the shapes fast kernels are made for, and their data.

Small-integer data make every float32 sum exact, so results are compared without tolerance; real-valued data are held to
|err| <= n * eps * (the oracle on absolute values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import ml_dtypes
import numpy as np
import oracle

import pullback as pb

DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LAYOUTS = ("channels_last", "channels_first")
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)

# Empty arrays have rows of their own (EMPTY): a pair seen only in one of those would not have been tested.
# One entry per axis, so that no two axes look alike; rank r takes the last r.
CHOICES: dict[str, tuple[Any, ...]] = {
    "rank": (1, 2, 3),
    "layout": LAYOUTS,
    "stride": (1, 2, 3, (2, 3, 1)),
    "dilation": (1, 2, (1, 3, 2)),
    "groups": (1, 2, 3),
    "padding": ("valid", "same", "same_lower", 1, (2, 0, 1), ((0, 2), (2, 1), (1, 0)), ((4, 0), (1, 5), (6, 7)), (-1, 1, -1)),
    "rounding": ("floor", "ceil", "round"),
    "dtype": DTYPES,
    "batch": (1, 3),
    "channels": (1, 3, 17),
    "filters": (1, 2, 16),
    "kernel": ((1, 1, 1), (2, 3, 2), (3, 1, 3), (3, 3, 3)),
    "size": ((3, 5, 3), (3, 5, 7), (5, 3, 13)),
    "ties": ("first", "last"),
    "nan": ("propagate", "ignore"),
    "count_include_pad": (False, True),
    "storage_order": (0, 1),
}
EMPTY = CHOICES | {"batch": (0, 3), "channels": (0, 3), "kernel": ((2, 3, 2),), "size": ((3, 5, 7),), "filters": (2,)}


@dataclass(frozen=True)
class Case:
    """One problem. Channels and filters count within a group; pooling takes the channels alone."""

    rank: int
    layout: str
    stride: Any
    dilation: Any
    groups: int
    padding: Any
    rounding: str
    dtype: np.dtype[Any]
    batch: int
    channels: int
    filters: int
    kernel: tuple[int, ...]
    size: tuple[int, ...]
    ties: str = "first"
    nan: str = "propagate"
    count_include_pad: bool = False
    storage_order: int = 0

    def shape(self, channels: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (self.batch, *sizes, channels) if self.layout == "channels_last" else (self.batch, channels, *sizes)

    @property
    def conv_input_shape(self) -> tuple[int, ...]:
        return self.shape(self.groups * self.channels, self.size)

    @property
    def conv_output_shape(self) -> tuple[int, ...]:
        return self.shape(self.groups * self.filters, self.geometry.outs)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        outer = self.groups * self.filters
        return (*self.kernel, self.channels, outer) if self.layout == "channels_last" else (outer, self.channels, *self.kernel)

    @property
    def pool_input_shape(self) -> tuple[int, ...]:
        return self.shape(self.channels, self.size)

    @property
    def pool_output_shape(self) -> tuple[int, ...]:
        return self.shape(self.channels, self.geometry.outs)

    @property
    def geometry(self) -> oracle.Geometry:
        return oracle.geometry(self.size, self.kernel, self.stride, self.dilation, self.padding, self.rounding)

    @property
    def pool_keywords(self) -> dict[str, Any]:
        names = ("stride", "padding", "dilation", "layout", "rounding")
        return {name: getattr(self, name) for name in names}

    @property
    def conv_keywords(self) -> dict[str, Any]:
        return self.pool_keywords | {"groups": self.groups}

    @property
    def max_keywords(self) -> dict[str, Any]:
        return self.pool_keywords | {"ties": self.ties, "nan": self.nan}

    @property
    def mean_keywords(self) -> dict[str, Any]:
        return self.pool_keywords | {"count_include_pad": self.count_include_pad}


def all_pairs(choices: dict[str, tuple[Any, ...]], seed: int) -> Iterator[dict[str, Any]]:
    """Rows in which every value of a parameter meets every value of every other; greedy, the same for a seed."""
    rng = np.random.default_rng(seed)
    names = list(choices)

    def named(row: dict[int, int]) -> dict[str, Any]:
        return {names[c]: choices[names[c]][i] for c, i in row.items()}

    uncovered = {
        (a, i, b, j)
        for a, b in combinations(range(len(names)), 2)
        for i, j in product(range(len(choices[names[a]])), range(len(choices[names[b]])))
    }
    while uncovered:
        a, i, b, j = min(uncovered)
        row = {a: i, b: j}
        for c in rng.permutation(len(names)).tolist():
            if c in row:
                continue
            values = [v for v in rng.permutation(len(choices[names[c]])).tolist() if allowed(named(row | {c: v}))]
            gains = [sum(pair(c, v, d, w) in uncovered for d, w in row.items()) for v in values]
            row[c] = values[gains.index(max(gains))]
        uncovered -= {pair(c, v, d, w) for (c, v), (d, w) in combinations(row.items(), 2)}
        yield {name: choices[name][row[c]] for c, name in enumerate(names)}


def allowed(row: dict[str, Any]) -> bool:
    """Whether a row may be: every dtype meets both rules for ties and both for NaN, but float32 alone meets all four pairs of them.

    Each pair on each dtype asks for a dozen kernels of its own, which take most of the time of the tests to compile.
    """
    if not {"dtype", "ties", "nan"} <= row.keys() or row["dtype"] == DTYPES[0]:
        return True
    alike = (row["ties"] == "first") == (row["nan"] == "propagate")
    return alike == (row["dtype"] != DTYPES[2])


def pair(a: int, i: int, b: int, j: int) -> tuple[int, int, int, int]:
    return (a, i, b, j) if a < b else (b, j, a, i)


def fitted(row: dict[str, Any]) -> Case:
    """A row as a case: axes beyond its rank cut off, sizes raised to the next prime until a window fits."""
    rank = row["rank"]
    cut = {k: v[-rank:] if isinstance(v, tuple) else v for k, v in row.items()}
    sizes = []
    for axis in range(rank):
        k, d = cut["kernel"][axis], oracle.each(cut["dilation"], rank)[axis]
        padding = cut["padding"]
        entry = 0 if isinstance(padding, str) else oracle.each(padding, rank)[axis]
        pads = 2 * entry if isinstance(entry, int) else sum(entry)
        needed = max(cut["size"][axis], (k - 1) * d + 1 - pads)
        sizes.append(next(prime for prime in PRIMES if prime >= needed))
    return Case(**(cut | {"size": tuple(sizes)}))


def favourites() -> Iterator[Case]:
    """Shapes that fast kernels specialise in, in both layouts: dense 3x3, 1x1, depthwise, a first layer, common pools."""
    plain = {"rank": 2, "rounding": "floor", "dtype": DTYPES[0], "dilation": 1, "batch": 2}
    shapes: tuple[dict[str, Any], ...] = (
        {"stride": 1, "padding": "same", "groups": 1, "channels": 16, "filters": 32, "kernel": (3, 3), "size": (11, 13)},
        {"stride": 2, "padding": "same", "groups": 1, "channels": 16, "filters": 16, "kernel": (3, 3), "size": (11, 13)},
        {"stride": 1, "padding": "valid", "groups": 1, "channels": 32, "filters": 16, "kernel": (1, 1), "size": (7, 5)},
        {"stride": 1, "padding": 1, "groups": 16, "channels": 1, "filters": 1, "kernel": (3, 3), "size": (11, 7)},
        {"stride": 2, "padding": 1, "groups": 16, "channels": 1, "filters": 1, "kernel": (3, 3), "size": (11, 7)},
        {"stride": 2, "padding": 3, "groups": 1, "channels": 3, "filters": 16, "kernel": (7, 7), "size": (17, 13)},
        {"stride": 2, "padding": "valid", "groups": 1, "channels": 16, "filters": 1, "kernel": (2, 2), "size": (12, 18)},
        {"stride": 2, "padding": 1, "groups": 1, "channels": 16, "filters": 1, "kernel": (3, 3), "size": (13, 19)},
        {"stride": 1, "padding": "valid", "groups": 1, "channels": 5, "filters": 3, "kernel": (7, 5), "size": (7, 5)},
        {"stride": 2, "padding": "valid", "groups": 1, "channels": 64, "filters": 2, "kernel": (2, 2), "size": (9, 11)},
    )
    return (Case(**(plain | shape | {"layout": layout})) for shape in shapes for layout in LAYOUTS)


@cache
def cases() -> tuple[Case, ...]:
    rows = [row for seed in (1, 2) for row in all_pairs(CHOICES, seed)] + list(all_pairs(EMPTY, 3))
    return (*favourites(), *map(fitted, rows))


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float64).astype(dtype)


def reals(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def with_nan(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Integers among which NaN and both infinities are common enough to share windows and to fill some."""
    values = rng.choice([np.nan, np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.0], shape)
    return values.astype(dtype)


@cache
def call(op: str, case: Case, fill: Fill) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of an op on a case; dy never holds the NaN of `with_nan`."""
    rng, gradient = rng_for(case), integers if fill is with_nan else fill
    if op.startswith("conv"):
        x, f = fill(rng, case.conv_input_shape, case.dtype), fill(rng, case.filter_shape, case.dtype)
        dy = gradient(rng, case.conv_output_shape, case.dtype)
        convs = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}
        return convs[op], case.conv_keywords
    x, dy = fill(rng, case.pool_input_shape, case.dtype), gradient(rng, case.pool_output_shape, case.dtype)
    if op == "max_pool_grad_from_indices":
        keywords = {"layout": case.layout, "storage_order": case.storage_order}
        indices = oracle.max_pool(x, case.kernel, **case.max_keywords, storage_order=case.storage_order)[1]
        return (dy, indices, x.shape), keywords
    keywords = case.mean_keywords if op.startswith("avg") else case.max_keywords
    if op == "max_pool_grad_from_winners":
        with pb.backend("reference"):
            winners = pb.max_pool(x, case.kernel, return_winners=True, **keywords)[1]
        return (dy, winners, x.shape, case.kernel), {name: value for name, value in keywords.items() if name != "ties"}
    pools = {"max_pool": (x,), "avg_pool": (x,), "max_pool_grad": (dy, x), "avg_pool_grad": (dy, x.shape)}
    return (*pools[op], case.kernel), keywords


def rng_for(case: Case) -> np.random.Generator:
    return np.random.default_rng([*case.size, *case.kernel, case.batch, case.channels, case.filters])


def difference(got: np.ndarray, exact: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    """What separates a result from the exact answer rounded once to its dtype; None if nothing does (-0.0 is 0.0)."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = exact.astype(dtype)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"got {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return None
    where = tuple(np.argwhere(wrong)[0].tolist())
    return f"{wrong.sum()} of {wrong.size} differ, first at {where}: got {a[where]}, expected {b[where]}"


def beyond_norm(got: np.ndarray, exact: np.ndarray, absolute: np.ndarray, error: float, dtype: np.dtype[Any]) -> str | None:
    """Whether the finite results err by more than `error` by norm, relative to sums of absolute values; the others must be alike.

    For kernels whose arithmetic is not that of plain sums: a single result near 0 may be all error, many results may not.
    """
    expected = exact.astype(dtype)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"got {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "infinities and NaN are not where they should be"
    rounding = float(ml_dtypes.finfo(dtype).eps) if dtype.itemsize == 2 else 0.0
    off, scale = float(np.linalg.norm(a[finite] - exact[finite])), float(np.linalg.norm(absolute[finite]))
    return None if off <= (error + rounding) * scale else f"error {off:.3g} by norm over {error + rounding:.3g} of {scale:.3g}"


def beyond_bound(got: np.ndarray, exact: np.ndarray, absolute: np.ndarray, terms: int, dtype: np.dtype[Any]) -> str | None:
    """Whether |err| > terms * eps * absolute, eps that of the sums, plus one rounding to a half-precision result."""
    if got.dtype != dtype or got.shape != exact.shape:
        return f"got {got.dtype} {got.shape}, expected {dtype} {exact.shape}"
    info = ml_dtypes.finfo(dtype)
    sums = float(np.finfo(np.float64 if dtype.itemsize == 8 else np.float32).eps)
    bound = terms * sums * absolute + float(info.smallest_subnormal)
    if dtype.itemsize == 2:
        bound = bound + float(info.eps) * np.abs(exact)
    error = np.abs(got.astype(np.float64) - exact)
    if (error <= bound).all():
        return None
    worst = np.unravel_index(int(np.argmax(error - bound)), error.shape)
    return f"error {error[worst]:.3g} over the bound {bound[worst]:.3g} at {tuple(map(int, worst))}"


def report(failures: dict[Any, str | None]) -> None:
    """Fail with every case that differs, not only the first."""
    wrong = {case: text for case, text in failures.items() if text is not None}
    lines = [f"{text}\n    {case}" for case, text in list(wrong.items())[:10]]
    assert not wrong, f"{len(wrong)} of {len(failures)} cases are wrong\n" + "\n".join(lines)


Fill = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], np.ndarray]


def terms(case: Case, op: str) -> int:
    """How many products or cells at most one result of the op sums, plus one for a division."""
    taps = math.prod(case.kernel)
    if op == "conv":
        return max(1, taps * case.channels)
    if op == "conv_grad_input":
        return max(1, taps * case.filters)
    if op == "conv_grad_filter":
        return max(1, case.batch * math.prod(case.geometry.outs))
    return taps + 1
