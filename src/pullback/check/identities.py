"""A sampled cross-product of problems, each gradient proved: adjoint identities, finite differences, conserved sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import pullback as pb
from pullback.check.compare import Function, is_adjoint, is_slope, ranks
from pullback.check.outcome import Outcome

SAMPLES = 120
SIZES = {1: (11,), 2: (7, 10), 3: (5, 6, 7)}
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}


@dataclass(frozen=True)
class Sample:
    """One random problem: shapes for channels_first, moved for channels_last."""

    rank: int
    layout: str
    groups: int
    batch: int
    keywords: dict[str, Any]

    def shape(self, channels: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (self.batch, *sizes, channels) if self.layout == "channels_last" else (self.batch, channels, *sizes)

    def describe(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.keywords.items())
        return f"{self.rank}-D groups={self.groups} batch={self.batch} {options}"


def samples(seed: int = 20) -> Iterator[Sample]:
    """Random members of rank x layout x groups x batch x stride x dilation x padding x rounding."""
    rng = np.random.default_rng(seed)

    def pick(choices: list[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    for _ in range(SAMPLES):
        rank = int(rng.integers(1, 4))
        pads = [tuple(int(p) for p in rng.integers(0, 2, 2)) for _ in range(rank)]
        keywords = {
            "stride": [int(s) for s in rng.integers(1, 4, rank)],
            "dilation": [int(d) for d in rng.integers(1, 3, rank)],
            "padding": pick(["valid", "same", "same_lower", 1, pads]),
            "rounding": pick(["floor", "ceil", "round"]),
            "layout": pick(["channels_last", "channels_first"]),
        }
        yield Sample(rank, keywords["layout"], pick([1, 1, 2]), pick([1, 2]), keywords)


def _conv(sample: Sample, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    kernel, groups = KERNELS[sample.rank], sample.groups
    x = rng.standard_normal(sample.shape(4, SIZES[sample.rank]))
    per_group = (4 // groups, 6)
    f_shape = (*kernel, *per_group) if sample.layout == "channels_last" else (*reversed(per_group), *kernel)
    f = rng.standard_normal(f_shape)
    options = {**sample.keywords, "groups": groups}
    dy = rng.standard_normal(pb.conv(x, f, **options).shape)
    dx = pb.conv_grad_input(dy, f, x.shape, **options)
    df = pb.conv_grad_filter(dy, x, f.shape, **options)
    yield "conv_grad_input", is_adjoint(lambda v: pb.conv(v, f, **options), dy, dx)
    yield "conv_grad_filter", is_adjoint(lambda v: pb.conv(x, v, **options), dy, df)


def _avg_pool(sample: Sample, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    shape, window = sample.shape(3, SIZES[sample.rank]), KERNELS[sample.rank]
    for include in (False, True):
        options = {**sample.keywords, "count_include_pad": include}
        forward: Function = partial(pb.avg_pool, window=window, **options)
        dy = rng.standard_normal(forward(np.zeros(shape)).shape)
        yield "avg_pool_grad", is_adjoint(forward, dy, pb.avg_pool_grad(dy, shape, window, **options))


def _max_pool(sample: Sample, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    shape, window = sample.shape(3, SIZES[sample.rank]), KERNELS[sample.rank]
    x = rng.integers(-3, 4, shape).astype(np.float64)
    for ties in ("first", "last"):
        options = {**sample.keywords, "ties": ties}
        y, indices = pb.max_pool(x, window, return_indices=True, **options)
        dy = rng.standard_normal(y.shape)
        dx = pb.max_pool_grad(dy, x, window, **options)
        at = ranks(x, ties).astype(np.float64)
        yield "max_pool_grad", is_slope(partial(pb.max_pool, window=window, **options), at, dy, dx)
        again = pb.max_pool_grad_from_indices(dy, indices, shape, layout=sample.layout)
        kept = float(dy[indices >= 0].sum())
        whole = bool(np.array_equal(again, dx)) and abs(float(dx.sum()) - kept) <= 1e-9 * max(1.0, float(np.abs(dy).sum()))
        yield "max_pool_grad_from_indices", whole


def size(every: int = 1) -> int:
    return len(range(0, SAMPLES, every)) * (2 + 2 + 4)


def prove_all(every: int = 1) -> Iterator[Outcome]:
    rng = np.random.default_rng(7)
    for part in (_conv, _avg_pool, _max_pool):
        for sample in islice(samples(), 0, None, every):
            for op, holds in part(sample, rng):
                detail = "" if holds else "the gradient is not that of its forward"
                yield Outcome(op, sample.describe(), "proved" if holds else "failed", detail)
