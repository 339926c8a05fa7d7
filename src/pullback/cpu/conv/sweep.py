"""A dense convolution or its input gradient as sweeps over three axes: base positions, the source cells each one reads.

Base position u of a phase reads source cells u * source_step + offset, one per tap, and makes target cell u * target_step + start.
Forward there is one phase; the input gradient has one for each residue of the stride, so that no zero is ever multiplied.
All of it is arithmetic on a few numbers for each axis: taps and offsets are ranges, and nothing is as long as an axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.cpu.engine.sizes import ceil_div
from pullback.problem import Problem
from pullback.window import Window

Ints = npt.NDArray[np.int64]

FAR_CELLS, FAR_OUTPUTS, FAR_SHARE = 4096, 16, 64  # see lies_far
MOST_IDLE = 8  # residues of a stride among which those without taps are phases, too; beyond, their cells are left out


@dataclass(frozen=True)
class AxisPhase:
    """Target cells start, start + target_step, ...: `count` of them, made by these taps from these offsets, the lowest first."""

    start: int
    count: int
    taps: range
    offsets: range

    def met(self, step: int, size: int) -> tuple[Ints, Ints]:
        """(first, end) of the bases for which each tap meets a source cell; the same number twice where there is none."""
        offsets = self.offsets.start + np.arange(len(self.offsets), dtype=np.int64) * self.offsets.step
        first = np.clip(-(offsets // step), 0, self.count)  # the smallest u with u * step + offset >= 0
        return first, np.clip((size - 1 - offsets) // step + 1, first, self.count)

    def alive(self, step: int, size: int) -> AxisPhase:
        """Without the first and the last taps that never meet a source cell."""
        first, end = self.met(step, size)
        kept = np.flatnonzero(end > first)
        part = slice(int(kept[0]), int(kept[-1]) + 1) if len(kept) else slice(0, 0)
        return AxisPhase(self.start, self.count, self.taps[part], self.offsets[part])

    @property
    def low(self) -> int:
        return self.offsets[0]

    @property
    def high(self) -> int:
        return self.offsets[-1]


def _evenly(first: int, step: int, count: int) -> range:
    """`count` numbers from `first` on, `step` apart."""
    return range(first, first + step * count, step)


def forward_phase(window: Window, axis: int) -> AxisPhase:
    """The only phase of an axis of a convolution: base u is output u, which reads cells u * stride + offset."""
    taps = range(window.kernel[axis])
    return AxisPhase(0, window.output_size[axis], taps, _evenly(-window.pad_low[axis], window.dilation[axis], len(taps)))


def gradient_phases(window: Window, axis: int) -> tuple[AxisPhase, ...]:
    """The phases of an axis of an input gradient that have taps: base u is cell u * stride + start, which outputs u + offset read.

    In the order of their starts.
    """
    n, k = window.input_size[axis], window.kernel[axis]
    s, d, p = window.stride[axis], window.dilation[axis], window.pad_low[axis]
    common = math.gcd(s, d)
    found = []
    for t in range(min(k, s // common)):  # the next tap of the same residue is s // common further
        start = (t * d - p) % s
        if start < n:
            taps = range(t, k, s // common)
            offsets = _evenly((start + p - t * d) // s, -(d // common), len(taps))
            found.append(AxisPhase(start, ceil_div(n - start, s), taps[::-1], offsets[::-1]))
    return tuple(sorted(found, key=lambda phase: phase.start))


def with_idle(phases: tuple[AxisPhase, ...], n: int, s: int) -> tuple[AxisPhase, ...]:
    """Phases of an axis of n cells and those without taps, one for each residue of the stride s."""
    found = {phase.start: phase for phase in phases}
    return tuple(
        found.get(start) or AxisPhase(start, ceil_div(n - start, s), range(0), range(0)) for start in range(min(s, n))
    )  # fmt: skip


@dataclass(frozen=True)
class AxisSweep:
    """target_cells: where the target cells belong in an axis of which they are a part, the others being zero; None if all do."""

    source_size: int
    target_size: int
    source_step: int
    target_step: int
    phases: tuple[AxisPhase, ...]
    target_cells: Ints | None = None

    @property
    def bases(self) -> int:
        return max(phase.count for phase in self.phases)

    @cached_property
    def low(self) -> int:
        """The first source cell that a tap of base 0 reads."""
        return min((phase.low for phase in self.phases if phase.offsets), default=0)

    @cached_property
    def high(self) -> int:
        """The last source cell that a tap of base 0 reads."""
        return max((phase.high for phase in self.phases if phase.offsets), default=0)

    def grid(self, block: int) -> int:
        """Distance of the source cells that a block of bases can read."""
        steps = [self.source_step if block > 1 else 0]
        for phase in self.phases:
            if phase.offsets:
                steps += [phase.offsets[0] - self.low, phase.offsets.step if len(phase.offsets) > 1 else 0]
        return math.gcd(*steps) or 1

    def places(self, block: int) -> int:
        """Cells of that distance from the first one read to the last one."""
        return ((block - 1) * self.source_step + self.high - self.low) // self.grid(block) + 1

    def lies_apart(self, block: int) -> bool:
        """Whether most of these cells lie between those that the taps read: then each tap's own cells are fewer."""
        taps = len(self.phases[0].taps)
        return len(self.phases) == 1 and taps > 1 and 2 * taps * block < self.places(block)

    def kept_places(self, block: int) -> int:
        """Cells that are kept of a block: all from the first one to the last one, or those of each tap."""
        return len(self.phases[0].taps) * block if self.lies_apart(block) else self.places(block)

    def taps_met(self) -> float:
        """The share of taps that meet a source cell, over all bases."""
        met = taps = 0
        for phase in self.phases:
            first, end = phase.met(self.source_step, self.source_size)
            met += int((end - first).sum())
            taps += phase.count * len(phase.taps)
        return met / max(1, taps)

    def whole_share(self) -> float:
        """The share of bases, of all phases, all of whose taps meet a source cell."""
        whole = 0
        for phase in self.phases:
            first, end = phase.met(self.source_step, self.source_size)
            whole += max(0, int(end.min(initial=phase.count)) - int(first.max(initial=0)))
        return whole / max(1, sum(phase.count for phase in self.phases))

    @property
    def is_padded(self) -> bool:
        """Whether some base reads a cell that is not there."""
        return any(
            phase.low < 0 or phase.high + (phase.count - 1) * self.source_step >= self.source_size
            for phase in self.phases
            if phase.offsets
        )


@dataclass(frozen=True)
class Sweep:
    """A whole problem: images, three axes, channels within a group, and which filter axis is summed over.

    target_cells: for each axis of the problem the cells that the target is made of, if not all.
    """

    images: int
    axes: tuple[AxisSweep, AxisSweep, AxisSweep]
    groups: int
    source_channels: int
    target_channels: int
    tap_kernel: tuple[int, int, int]
    target_cells: tuple[Ints, ...] | None

    @property
    def phases(self) -> list[tuple[AxisPhase, AxisPhase, AxisPhase]]:
        d, h, w = self.axes
        return list(product(d.phases, h.phases, w.phases))

    @property
    def is_padded(self) -> bool:
        return any(axis.is_padded for axis in self.axes)

    @property
    def most_taps(self) -> int:
        """Of a phase."""
        return max(1, math.prod(max(len(phase.taps) for phase in axis.phases) for axis in self.axes))

    def tap_numbers(self, phase: tuple[AxisPhase, AxisPhase, AxisPhase]) -> Ints:
        return over_taps([axis.taps for axis in phase], (self.tap_kernel[1] * self.tap_kernel[2], self.tap_kernel[2], 1))


def over_taps(ranges: list[range], units: tuple[int, ...]) -> Ints:
    """The sum of ranges[i][t_i] * units[i] for all (t_0, t_1, ...), row-major."""
    total: Any = np.zeros(1, np.int64)
    for values, unit in zip(ranges, units, strict=True):
        more = values.start + np.arange(len(values), dtype=np.int64) * values.step
        total = (total[:, None] + more * unit).reshape(-1)
    return np.asarray(total, np.int64)


def _axis(window: Window, axis: int, forward: bool) -> AxisSweep:
    n, o = window.input_size[axis], window.output_size[axis]
    if forward:
        step = window.stride[axis] if o > 1 else 1
        return AxisSweep(n, o, step, 1, (forward_phase(window, axis).alive(step, n),))
    s = window.stride[axis]
    phases = tuple(phase.alive(1, o) for phase in gradient_phases(window, axis))
    if min(s, n) <= MOST_IDLE:
        return AxisSweep(o, n, 1, s, with_idle(phases, n, s))
    phases = tuple(phase for phase in phases if phase.taps) or (AxisPhase(0, ceil_div(n, s), range(0), range(0)),)
    if len(phases) == min(s, n):
        return AxisSweep(o, n, 1, s, phases)
    # The cells that have taps, side by side: the phases follow each other round and round, up to the last cell.
    starts, counts = np.array([phase.start for phase in phases]), [phase.count for phase in phases]
    cells = (np.arange(max(counts), dtype=np.int64)[:, None] * s + starts).reshape(-1)[: sum(counts)]
    packed = tuple(replace(phase, start=place) for place, phase in enumerate(phases))
    return AxisSweep(o, len(cells), 1, len(phases), packed, cells)


def _is_plain(axis: AxisSweep) -> bool:
    """Whether the axis is swept cell by cell: each target cell reads the source cell of the same number."""
    return axis.source_step == 1 and axis.target_step == 1 and axis.phases == (
        AxisPhase(0, axis.source_size, range(1), range(1)),
    ) and axis.source_size == axis.target_size  # fmt: skip


def _plain(size: int) -> AxisSweep:
    return AxisSweep(size, size, 1, 1, (AxisPhase(0, size, range(1), range(1)),))


def sweep_of(problem: Problem) -> Sweep:
    """The sweep of a convolution, over as few axes as its layout allows; a filter gradient meets the same cells as `conv`."""
    window, forward = problem.window, problem.op != "conv_grad_input"
    axes = [_axis(window, axis, forward) for axis in range(window.rank)]
    target_cells = None
    if any(axis.target_cells is not None for axis in axes):
        target_cells = tuple(np.arange(axis.target_size) if axis.target_cells is None else axis.target_cells for axis in axes)
    kernel = list(window.kernel)
    # An axis whose other taps reach nothing looks plain, but its tap numbers still count them.
    plain = [_is_plain(axis) and taps == 1 for axis, taps in zip(axes, kernel, strict=True)]
    images = problem.batch
    index = 1
    while index < len(axes):  # plain axes side by side are one
        if plain[index - 1] and plain[index]:
            axes[index - 1 : index + 1] = [_plain(axes[index - 1].source_size * axes[index].source_size)]
            del kernel[index], plain[index]
        else:
            index += 1
    if problem.layout == "channels_last" and plain[0]:  # and images are one more
        if len(axes) == 1:
            images, axes[0] = 1, _plain(images * axes[0].source_size)
        else:
            images *= axes[0].source_size
            del axes[0], kernel[0]
    while len(axes) < 3:
        axes.insert(0, _plain(1))
        kernel.insert(0, 1)
    out_channels, summed = problem.channels_out, problem.channels_in
    if not forward:
        out_channels, summed = summed, out_channels
    return Sweep(
        images, (axes[0], axes[1], axes[2]), problem.groups, summed // problem.groups, out_channels // problem.groups,
        (kernel[0], kernel[1], kernel[2]), target_cells,
    )  # fmt: skip


def lies_far(window: Window) -> bool:
    """Whether a few outputs read few cells far from each other: too far to keep all the cells between them at hand.

    Kernels other than the direct ones would.
    """
    return any(
        (FAR_OUTPUTS - 1) * (s if o > 1 else 0) + (k - 1) * d > max(FAR_CELLS, FAR_SHARE * k)
        for o, k, s, d in zip(window.output_size, window.kernel, window.stride, window.dilation, strict=True)
    )


def settled(problem: Problem) -> Problem:
    """The same problem, with no stride beyond the window where no second window follows."""
    window = problem.window
    spans = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    strides = tuple(
        min(s, e) if o == 1 else s for s, e, o in zip(window.stride, spans, window.output_size, strict=True)
    )  # fmt: skip
    return problem if strides == window.stride else replace(problem, window=replace(window, stride=strides))
