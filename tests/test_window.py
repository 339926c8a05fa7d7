"""Window: every method against brute force over random geometry, and the size and padding formulas."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import FrozenInstanceError
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pullback.window import PADDING_NAMES, ROUNDINGS, Window, axis_slices, count_windows, round_size, same_pads, span

small = st.integers(1, 5)


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """(n, k, s, d, p, q) of an axis whose padded input holds a window; pads may be negative."""
    k, s, d = draw(st.integers(1, 4)), draw(small), draw(st.integers(1, 3))
    n, p, q = draw(st.integers(0, 12)), draw(st.integers(-3, 6)), draw(st.integers(-3, 6))
    missing = max(0, (k - 1) * d + 1 - n - p - q)
    return n + missing, k, s, d, p, q


@st.composite
def windows(draw: st.DrawFn, max_rank: int = 3) -> Window:
    chosen = draw(st.lists(axes(), min_size=1, max_size=max_rank))
    n, k, s, d, p, q = zip(*chosen, strict=True)
    padding: Any = draw(st.sampled_from([*PADDING_NAMES, "explicit"]))
    if padding == "valid":
        n = tuple(max(ni, (ki - 1) * di + 1) for ni, ki, di in zip(n, k, d, strict=True))
    pads = list(zip(p, q, strict=True)) if padding == "explicit" else padding
    return Window.make(n, k, s, d, pads, draw(st.sampled_from(ROUNDINGS)))


def reads(w: Window, axis: int) -> list[tuple[int, int, int]]:
    """(output, tap, cell) of every read of an axis inside the input, by trying all."""
    tried = product(range(w.output_size[axis]), range(w.kernel[axis]))
    found = ((y, t, y * w.stride[axis] - w.pad_low[axis] + t * w.dilation[axis]) for y, t in tried)
    return [read for read in found if 0 <= read[2] < w.input_size[axis] + min(0, w.pad_high[axis])]


@given(windows(), st.data())
def test_tap_cell_and_outputs_of_tap(w: Window, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, w.rank - 1))
    for t in range(w.kernel[axis]):
        expected = [(y, cell) for y, tap, cell in reads(w, axis) if tap == t]
        assert [(y, w.tap_cell(axis, y, t)) for y in w.outputs_of_tap(axis, t)] == expected


@given(windows())
def test_tap_slices_pair_outputs_with_cells(w: Window) -> None:
    numbered_outputs = np.indices(w.output_size)
    numbered_inputs = np.indices(w.input_size)
    per_axis = [reads(w, axis) for axis in range(w.rank)]
    for tap in w.taps():
        outs, ins = w.tap_slices(tap)
        for axis in range(w.rank):
            pairs = [(y, cell) for y, t, cell in per_axis[axis] if t == tap[axis]]
            along_out = range(w.output_size[axis])[outs[axis]]
            along_in = range(w.input_size[axis])[ins[axis]]
            assert list(zip(along_out, along_in, strict=True)) == pairs
        assert numbered_outputs[(slice(None), *outs)].shape == numbered_inputs[(slice(None), *ins)].shape


@given(windows(max_rank=1))
def test_covering_lists_the_reads_of_a_cell(w: Window) -> None:
    for i in range(w.input_size[0]):
        assert w.covering(0, i) == tuple(sorted((y, t) for y, t, cell in reads(w, 0) if cell == i))


@given(windows(max_rank=1))
def test_phases_hold_every_read_exactly_once(w: Window) -> None:
    w = w.cropped()
    found = Counter(
        (j + shift, t, phase.start + j * w.stride[0])
        for phase in w.phases(0)
        for j in range(phase.count)
        for t, shift in zip(phase.taps, phase.shifts, strict=True)
        if 0 <= j + shift < w.output_size[0]
    )
    assert found == Counter(reads(w, 0))
    assert all(phase.count > 0 for phase in w.phases(0))
    cells = [phase.start + j * w.stride[0] for phase in w.phases(0) for j in range(phase.count)]
    assert sorted(cells) == list(range(w.input_size[0]))


@given(windows())
def test_tap_ranges_and_readers_hold_every_read(w: Window) -> None:
    for axis in range(w.rank):
        expected = reads(w, axis)
        firsts, counts = w.tap_ranges(axis)
        taps = [(y, t) for y in range(w.output_size[axis]) for t in range(firsts[y], firsts[y] + counts[y])]
        assert taps == [(y, t) for y, t, _ in expected]
        readers = w.readers(axis)
        for i in range(w.input_size[axis]):
            steps = range(int(readers.count[i]))
            found = [(readers.first[i] + m * readers.step, readers.first_tap[i] + m * readers.tap_step) for m in steps]
            assert found == sorted((y, t) for y, t, cell in expected if cell == i)


def test_ranges_of_strides_and_dilations_that_fill_31_bits() -> None:
    most = 2**31 - 1
    for stride, dilation in ((most, 1), (1, most), (most, most - 1), (most - 1, most)):
        w = Window((7,), (3,), (2,), (stride,), (dilation,), (most - 2,), (0,))
        readers = w.readers(0)
        found = [[(int(readers.first[i]), int(readers.first_tap[i]))] * int(readers.count[i]) for i in range(7)]
        assert found == [list(w.covering(0, i)) for i in range(7)]
        assert w.tap_ranges(0)[1].tolist() == [len({t for y, t, _ in reads(w, 0) if y == output}) for output in range(3)]


@given(windows(), st.data())
def test_negative_pads_crop(w: Window, data: st.DataObject) -> None:
    """What a window reads, and how many there are, is as if the cells had been cut off by hand."""
    rounding = data.draw(st.sampled_from(ROUNDINGS))
    for n, k, s, d, p, q in zip(w.input_size, w.kernel, w.stride, w.dilation, w.pad_low, w.pad_high, strict=True):
        left = n + min(p, 0) + min(q, 0)
        try:
            whole = Window.make((n,), (k,), (s,), (d,), [(p, q)], rounding)
        except ValueError:
            with pytest.raises(ValueError, match="spans"):
                Window.make((left,), (k,), (s,), (d,), [(max(p, 0), max(q, 0))], rounding)
            continue
        by_hand = Window.make((left,), (k,), (s,), (d,), [(max(p, 0), max(q, 0))], rounding)
        assert whole.output_size == by_hand.output_size
        assert reads(whole, 0) == [(y, t, cell - min(p, 0)) for y, t, cell in reads(by_hand, 0)]
        assert whole.axis_divisor(0, "padded").tolist() == by_hand.axis_divisor(0, "padded").tolist()
        assert whole.cropped().output_size == whole.output_size
        assert reads(whole.cropped(), 0) == reads(whole, 0)
        assert not whole.cropped().reaches_crop


def flat_reads(w: Window) -> set[tuple[int, int, int]]:
    """(output, tap, cell) of every read, all numbered row-major."""
    found = set()
    for triples in itertools.product(*(reads(w, axis) for axis in range(w.rank))):
        numbers = [0, 0, 0]
        for axis, triple in enumerate(triples):
            sizes = (w.output_size[axis], w.kernel[axis], w.input_size[axis])
            numbers = [number * size + part for number, size, part in zip(numbers, sizes, triple, strict=True)]
        found.add(tuple(numbers))
    return found


@given(windows(), st.data())
def test_merged_windows_read_the_same_cells(w: Window, data: st.DataObject) -> None:
    whole = data.draw(st.integers(0, w.rank))  # this many axes at the end are spanned by one window
    parts = [list(part) for part in (w.input_size, w.output_size, w.kernel, w.stride, w.dilation, w.pad_low, w.pad_high)]
    for axis in range(w.rank - whole, w.rank):
        n = max(1, parts[0][axis])
        for part, value in zip(parts, (n, 1, n, parts[3][axis], 1, 0, 0), strict=True):
            part[axis] = value
    spanned = Window(*map(tuple, parts))
    merged = spanned.merged()
    assert (
        merged.rank <= max(1, spanned.rank - whole + (whole == spanned.rank))
        or whole == 0
        or any(d > 1 for d in spanned.dilation)
    )
    assert flat_reads(merged) == flat_reads(spanned)
    for rule in ("valid", "padded", "full"):
        assert merged.divisor(rule).ravel().tolist() == spanned.divisor(rule).ravel().tolist()


@given(windows())
def test_taps_run_row_major(w: Window) -> None:
    assert list(w.taps()) == list(np.ndindex(w.kernel))
    assert w.tap_count == math.prod(w.kernel) == len(list(w.taps()))


@given(windows())
def test_divisors_count_cells(w: Window) -> None:
    limits = {
        "valid": lambda axis: range(w.input_size[axis] + min(0, w.pad_high[axis])),
        "padded": lambda axis: range(-w.pad_low[axis], w.input_size[axis] + w.pad_high[axis]),
    }
    for rule, counted in limits.items():
        whole = np.ones(w.output_size, np.int64)
        for axis in range(w.rank):
            expected = [
                sum(w.tap_cell(axis, y, t) in counted(axis) for t in range(w.kernel[axis])) for y in range(w.output_size[axis])
            ]
            assert w.axis_divisor(axis, rule).tolist() == expected  # type: ignore[arg-type]
            whole *= np.array(expected, np.int64).reshape((-1,) + (1,) * (w.rank - 1 - axis))
        assert np.array_equal(w.divisor(rule), whole)  # type: ignore[arg-type]
    assert (w.divisor("full") == w.tap_count).all()
    assert w.divisor("full").shape == w.output_size


@given(axes(), st.sampled_from(ROUNDINGS))
def test_output_sizes(axis: tuple[int, ...], rounding: Any) -> None:
    n, k, s, d, p, q = axis
    expected = oracle.axis_size(n, (k - 1) * d + 1, s, p, q, rounding)
    assert count_windows(n, span(k, d), s, p, q, rounding) == expected
    assert Window.make((n,), (k,), (s,), (d,), [(p, q)], rounding).output_size == (expected,)


@pytest.mark.parametrize(
    ("n", "e", "s", "p", "q", "rounding", "expected"),
    [
        (6, 3, 2, 0, 0, "floor", 2),
        (6, 3, 2, 0, 0, "ceil", 3),
        (6, 3, 2, 0, 0, "round", 3),  # two and a half windows: half rounds up
        (6, 3, 4, 0, 0, "round", 2),
        (5, 2, 4, 0, 0, "round", 2),
        (7, 2, 4, 0, 0, "floor", 2),
        (4, 1, 3, 1, 1, "ceil", 2),  # a third window would start at cell 5 of 4 + 1
        (5, 2, 5, 0, 1, "ceil", 1),  # a second window would start at cell 5 of 5
        (6, 2, 5, 0, 1, "ceil", 2),
        (4, 2, 4, 0, 1, "round", 1),  # the same under "round"
        (5, 1, 1, 1, 1, "floor", 7),  # windows that fit stay, also where they hold padding only
        (5, 1, 1, 1, 1, "ceil", 7),
        (5, 1, 1, 0, 9, "round", 14),
        (1, 3, 4, -1, 1, "ceil", 0),
        (2, 3, 2, 0, 0, "floor", 0),
        (3, 1, 1, -1, -1, "floor", 1),
    ],
)
def test_known_sizes(n: int, e: int, s: int, p: int, q: int, rounding: Any, expected: int) -> None:
    assert count_windows(n, e, s, p, q, rounding) == expected


@given(st.integers(-40, 40), st.integers(1, 7))
def test_round_size(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    assert round_size(value, "floor") <= value < round_size(value, "floor") + 1
    assert round_size(value, "ceil") - 1 < value <= round_size(value, "ceil")
    assert -Fraction(1, 2) < round_size(value, "round") - value <= Fraction(1, 2)


@given(st.integers(0, 20), st.integers(1, 9), st.integers(1, 6))
def test_same_pads(n: int, e: int, s: int) -> None:
    low, high = same_pads(n, e, s)
    assert 0 <= high - low <= 1
    assert same_pads(n, e, s, lower=True) == (high, low)
    o = math.ceil(n / s)
    if n:  # as little padding as lets the last window end inside
        needed = (o - 1) * s + e
        assert low + high == max(0, needed - n)
        raw = same_pads(n, e, s, clamp=False)
        assert sum(raw) == needed - n
        assert 0 <= raw[1] - raw[0] <= 1
        assert same_pads(n, e, s, lower=True, clamp=False) == raw[::-1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), small, st.integers(1, 3)), min_size=1, max_size=3))
def test_same_window_has_one_output_per_stride(chosen: list[tuple[int, int, int, int]]) -> None:
    n, k, s, d = zip(*chosen, strict=True)
    for name in ("same", "same_lower"):
        w = Window.make(n, k, s, d, name, "floor")
        assert w.output_size == tuple(math.ceil(ni / si) for ni, si in zip(n, s, strict=True))
        pads = [same_pads(ni, span(ki, di), si, lower=name == "same_lower") for ni, ki, si, di in zip(n, k, s, d, strict=True)]
        assert list(zip(w.pad_low, w.pad_high, strict=True)) == pads


def test_window_is_frozen_hashable_and_equal_by_value() -> None:
    make = lambda stride: Window.make((7, 5), (3, 2), (stride, 1), (1, 2), [(1, 0), (0, 1)], "floor")  # noqa: E731
    w = make(2)
    assert w == make(2)
    assert hash(w) == hash(make(2))
    assert w != make(1)
    assert {w: "kept"}[make(2)] == "kept"
    with pytest.raises(FrozenInstanceError):
        w.kernel = (1, 1)  # type: ignore[misc]
    phase = w.phases(0)[0]
    assert hash(phase) == hash(make(2).phases(0)[0])
    with pytest.raises(FrozenInstanceError):
        phase.start = 1  # type: ignore[misc]


def test_a_window_that_does_not_fit_names_axis_and_numbers() -> None:
    with pytest.raises(ValueError, match=r"window of 3 with dilation 2 spans 5 cells, more than the 4 .*\(-1, 1\).*axis 1"):
        Window.make((9, 4), (3, 3), (1, 1), (1, 2), [(0, 0), (-1, 1)], "floor")


def test_axis_slices_put_the_channels_where_the_layout_has_them() -> None:
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    spatial = (slice(1, 3), slice(0, 4, 2))
    assert np.array_equal(x[axis_slices(True, spatial)], x[:, 1:3, 0:4:2, :])
    assert np.array_equal(x[axis_slices(False, spatial)], x[:, :, 1:3, 0:4:2])
