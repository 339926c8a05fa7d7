"""Makes a failing case as small and plain as it can be while it still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from .cases import Case, each, pairs
from .check import Outcome
from .program import defaults

NUMBERS = ("batch", "groups", "channels", "filters")
# Plainest first: a failure on ones needs no random numbers to be understood.
PLAINER_DATA = ("ones", "integers", "zeros", "sprinkled", "specials", "reals")
FIRST = ("memory", "guard", "again", "cpus", "threads", "precision", "spoiled")


def shrink(case: Case, failure: Outcome, run: Callable[[Case], Outcome], seconds: float) -> tuple[Case, Outcome]:
    """Greedy: take the first simpler case that fails in the same way, and go on from there."""
    end, tried = time.monotonic() + seconds, {case}
    progress = True
    while progress:
        progress = False
        for candidate in simpler(case):
            if time.monotonic() > end:
                return case, failure
            if candidate in tried:
                continue
            tried.add(candidate)
            outcome = run(candidate)
            if outcome.status == "failed" and outcome.category == failure.category:
                case, failure, progress = candidate, outcome, True
                break
    return case, failure


def simpler(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest steps first."""
    usual = {field.name: field.default for field in fields(case)}
    if "stride" in defaults(case.op):
        usual["stride"] = defaults(case.op)["stride"]
    for name in FIRST:
        if getattr(case, name) != usual[name]:
            yield replace(case, **{name: usual[name]})
    if len(case.spoiled) > 1:
        yield from (replace(case, spoiled=(one,)) for one in case.spoiled)
    if case.again is not None:
        yield replace(case, threads=1, again=2)
    for place, kind in enumerate(case.memory):
        if kind != "plain":
            yield replace(case, memory=tuple("plain" if place == other else k for other, k in enumerate(case.memory)))
    yield from _fewer_axes(case)
    for name in ("size", "window", *NUMBERS):
        yield from _smaller(case, name)
    for name, value in usual.items():
        if name not in (*FIRST, "op", "kernel", "size", "window", "data", *NUMBERS) and getattr(case, name) != value:
            yield replace(case, **{name: value})
    better = PLAINER_DATA[: PLAINER_DATA.index(case.data)] if case.data in PLAINER_DATA else PLAINER_DATA
    yield from (replace(case, data=data) for data in better)
    yield from _plainer_place(case)
    if case.data != "ones":  # fewer random numbers may no longer be the wrong ones
        for name in ("size", "window", *NUMBERS):
            for less in _smaller(case, name):
                yield from (replace(less, seed=seed) for seed in range(1, 5))


def _fewer_axes(case: Case) -> Iterator[Case]:
    """Without one of the axes."""
    if case.rank == 1 or case.layout.startswith("N"):
        return
    for axis in range(case.rank):
        cut: dict[str, Any] = {}
        for name in ("size", "window", "stride", "dilation", "padding", "output_padding"):
            value = getattr(case, name)
            if isinstance(value, tuple):
                cut[name] = value[:axis] + value[axis + 1 :]
        yield replace(case, **cut)


def _smaller(case: Case, name: str) -> Iterator[Case]:
    """A number, or each number of a tuple: a few, half, one or two less; some failures want an odd number."""
    value = getattr(case, name)
    for place, number in enumerate(value if isinstance(value, tuple) else (value,)):
        for less in dict.fromkeys((1, 2, 3, 4, 5, number // 2, number // 2 + 1, number - 2, number - 1)):
            if 0 < less < number:
                changed = (*value[:place], less, *value[place + 1 :]) if isinstance(value, tuple) else less
                yield replace(case, **{name: changed})


def _plainer_place(case: Case) -> Iterator[Case]:
    """Strides and dilations axis by axis towards 1, pads towards 0, one number where all are the same."""
    for name in ("stride", "dilation"):
        value = getattr(case, name)
        if value is None:
            continue
        yield from _smaller(case, name)
        if isinstance(value, tuple) and len(set(value)) == 1:
            yield replace(case, **{name: value[0]})
        if isinstance(value, int) and case.rank > 1:
            yield from _smaller(replace(case, **{name: each(value, case.rank)}), name)
    if case.padding in ("same", "same_lower") and case.geometry is not None and case.op != "conv_transpose":
        geometry = case.geometry
        yield replace(case, padding=tuple(zip(geometry.pad_low, geometry.pad_high, strict=True)))
    elif not isinstance(case.padding, str):
        pads = [list(pair) for pair in pairs(case.padding, case.rank)]
        for axis, pair in enumerate(pads):
            for side in (0, 1):
                for less in dict.fromkeys((0, int(pair[side] / 2), pair[side] - (1 if pair[side] > 0 else -1))):
                    if abs(less) < abs(pair[side]):
                        changed = [
                            tuple(less if (a, s) == (axis, side) else v for s, v in enumerate(p)) for a, p in enumerate(pads)
                        ]
                        yield replace(case, padding=tuple(changed))
