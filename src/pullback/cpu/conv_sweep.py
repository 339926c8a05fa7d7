"""A dense convolution or its input gradient as sweeps over three axes: base positions, the source cells each one reads.

Base position u of a phase reads source cells u * source_step + offset, one per tap, and makes target cell u * target_step + start.
Forward there is one phase; the input gradient has one for each residue of the stride, so that no zero is ever multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from pullback.problem import Problem
from pullback.window import Window


@dataclass(frozen=True)
class AxisPhase:
    """Target cells start, start + target_step, ...: `count` of them, made by these taps from these offsets."""

    start: int
    count: int
    taps: tuple[int, ...]
    offsets: tuple[int, ...]

    def classes(self, step: int, size: int) -> tuple[list[int], list[tuple[int, ...]]]:
        """(class of each base, which taps meet a source cell in each class)."""
        cells = np.arange(self.count, dtype=np.int64)[:, None] * step + np.array(self.offsets, np.int64)
        met = (cells >= 0) & (cells < size)
        found: dict[bytes, int] = {}
        kinds = [found.setdefault(row.tobytes(), len(found)) for row in met]
        return kinds, [tuple(np.flatnonzero(np.frombuffer(row, np.bool_)).tolist()) for row in found]


@dataclass(frozen=True)
class AxisSweep:
    source_size: int
    target_size: int
    source_step: int
    target_step: int
    phases: tuple[AxisPhase, ...]

    @property
    def bases(self) -> int:
        return max(phase.count for phase in self.phases)

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(offset for phase in self.phases for offset in phase.offsets) or (0,)

    def grid(self, block: int) -> int:
        """Distance of the source cells that a block of bases can read."""
        low = min(self.offsets)
        return math.gcd(self.source_step if block > 1 else 0, *(offset - low for offset in self.offsets)) or 1

    def places(self, block: int) -> int:
        """Cells of that distance from the first one read to the last one."""
        reach = (block - 1) * self.source_step + max(self.offsets) - min(self.offsets)
        return reach // self.grid(block) + 1

    def taps_met(self) -> float:
        """The share of taps that meet a source cell, over all bases."""
        met = taps = 0
        for phase in self.phases:
            kinds, sets = phase.classes(self.source_step, self.source_size)
            met += sum(len(sets[kind]) for kind in kinds)
            taps += phase.count * len(phase.taps)
        return met / max(1, taps)

    @property
    def is_padded(self) -> bool:
        """Whether some base reads a cell that is not there."""
        return any(
            min(phase.offsets) < 0 or max(phase.offsets) + (phase.count - 1) * self.source_step >= self.source_size
            for phase in self.phases
            if phase.offsets
        )


@dataclass(frozen=True)
class Sweep:
    """A whole problem: images, three axes, channels within a group, and which filter axis is summed over."""

    images: int
    axes: tuple[AxisSweep, AxisSweep, AxisSweep]
    groups: int
    source_channels: int
    target_channels: int
    tap_kernel: tuple[int, int, int]

    @property
    def phases(self) -> list[tuple[AxisPhase, AxisPhase, AxisPhase]]:
        d, h, w = self.axes
        return list(product(d.phases, h.phases, w.phases))

    @property
    def is_padded(self) -> bool:
        return any(axis.is_padded for axis in self.axes)

    def tap_numbers(self, phase: tuple[AxisPhase, AxisPhase, AxisPhase]) -> list[int]:
        _, kh, kw = self.tap_kernel
        d, h, w = phase
        return [(a * kh + b) * kw + c for a, b, c in product(d.taps, h.taps, w.taps)]


def _alive(phase: AxisPhase, step: int, size: int) -> AxisPhase:
    """Without the taps that never meet a source cell."""
    cells = np.arange(phase.count, dtype=np.int64) * step
    kept = [i for i, offset in enumerate(phase.offsets) if ((cells + offset >= 0) & (cells + offset < size)).any()]
    return AxisPhase(phase.start, phase.count, tuple(phase.taps[i] for i in kept), tuple(phase.offsets[i] for i in kept))


def _axis(window: Window, axis: int, forward: bool) -> AxisSweep:
    n, o = window.input_size[axis], window.output_size[axis]
    k, s, d, p = window.kernel[axis], window.stride[axis], window.dilation[axis], window.pad_low[axis]
    if forward:
        phases = (AxisPhase(0, o, tuple(range(k)), tuple(t * d - p for t in range(k))),)
        step = s if o > 1 else 1
        return AxisSweep(n, o, step, 1, tuple(_alive(phase, step, n) for phase in phases))
    found = tuple(AxisPhase(phase.start, phase.count, phase.taps, phase.shifts) for phase in window.phases(axis))
    return AxisSweep(o, n, 1, s, tuple(_alive(phase, 1, o) for phase in found))


def _is_plain(axis: AxisSweep) -> bool:
    """Whether the axis is swept cell by cell: each target cell reads the source cell of the same number."""
    return axis.source_step == 1 and axis.target_step == 1 and axis.phases == (
        AxisPhase(0, axis.source_size, (0,), (0,)),
    ) and axis.source_size == axis.target_size  # fmt: skip


def _plain(size: int) -> AxisSweep:
    return AxisSweep(size, size, 1, 1, (AxisPhase(0, size, (0,), (0,)),))


def sweep_of(problem: Problem) -> Sweep:
    """The sweep of `conv` or `conv_grad_input`, over as few axes as its layout allows."""
    window, forward = problem.window, problem.op == "conv"
    axes = [_axis(window, axis, forward) for axis in range(window.rank)]
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
    produced, summed = problem.channels_out, problem.channels_in
    if not forward:
        produced, summed = summed, produced
    return Sweep(
        images, (axes[0], axes[1], axes[2]), problem.groups, summed // problem.groups, produced // problem.groups,
        (kernel[0], kernel[1], kernel[2]),
    )  # fmt: skip
