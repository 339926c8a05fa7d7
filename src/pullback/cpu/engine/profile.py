"""The machine's own figures that cost models go by: rates of a core and of all, and what it costs to hand out work.

A tuned cost was measured on the machine of the built-in figures. On another it is that cost times how much dearer its kind of work
is there (`dearer`). With the built-in figures every such factor is 1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property

from pullback.cpu.engine.machine import cpu_kind
from pullback.cpu.machine_code.levels import level
from pullback.settings import QUIET_VARIABLE, environment

PROFILE_VARIABLE = "PULLBACK_PROFILE"
BUILT_IN_NAME, MEASURE_NAME = "builtin", "measure"
MEASURING = "pullback: measuring this CPU, once, for about two seconds; `pullback tune` does it ahead"
# Factors are rounded to quarters of an octave: a model is not better than that, and machines of one kind then choose alike.
STEPS = 4
MOST_FACTOR = 8.0  # either way; beyond it something else was measured


@dataclass(frozen=True)
class Profile:
    """Figures of a machine, of one core where it does not say all. float32; copies count bytes read and written."""

    source: str
    cpu: str
    level: str
    cores: int
    fma: float  # floating-point operations a second
    fma_all: float
    l1: float  # bytes a second, copied within each cache, and in memory
    l2: float
    l3: float
    memory: float
    memory_all: float
    transpose: float  # elements a second
    transform: float  # points of Winograd's tiles, in and out
    scatter: float  # max-pool gradients from winners by each kernel: elements of dx a second
    phases: float
    gather: float
    dispatch: float  # seconds that a job takes longer on two threads than alone, while workers spin
    dispatch_thread: float  # more, for each further thread
    wake: float  # more, where workers have gone to sleep

    @cached_property
    def transposing(self) -> float:
        return dearer(self.transpose / self.fma, BUILT_IN.transpose / BUILT_IN.fma)

    @cached_property
    def transforming(self) -> float:
        return dearer(self.transform / self.fma, BUILT_IN.transform / BUILT_IN.fma)

    @cached_property
    def moving(self) -> float:
        """Single elements, which go with a core's clock as the first-level cache does, and not with the width of its vectors."""
        return dearer(self.l1 / self.fma, BUILT_IN.l1 / BUILT_IN.fma)

    @cached_property
    def copying(self) -> float:
        """From and to the second-level cache."""
        return dearer(self.l2 / self.fma, BUILT_IN.l2 / BUILT_IN.fma)

    @cached_property
    def waiting(self) -> float:
        """For memory that all cores share."""
        return dearer(self.memory_all / self.fma_all, BUILT_IN.memory_all / BUILT_IN.fma_all)

    @cached_property
    def calling(self) -> float:
        """A job's beginning and end."""
        return dearer(1 / (self.dispatch * self.fma), 1 / (BUILT_IN.dispatch * BUILT_IN.fma))

    def pooling(self, kernel: str) -> float:
        """Time of a max-pool gradient from winners by this kernel, or of a transpose, beside one by phases, over the same by the
        built-in figures."""
        return dearer(getattr(self, kernel) / self.phases, getattr(BUILT_IN, kernel) / BUILT_IN.phases)

    @cached_property
    def sharing(self) -> float:
        """Bytes that a core copies while a job is handed out, over those by the built-in figures."""
        return dearer(1 / (self.dispatch * self.l2), 1 / (BUILT_IN.dispatch * BUILT_IN.l2))


FIGURES = tuple(field.name for field in fields(Profile) if field.type == "float")
SECONDS = ("dispatch", "dispatch_thread", "wake")  # of which less is better

# A core of AMD's Zen 4 with AVX-512, two of them in reach: the machine that all tuning.py were measured on.
BUILT_IN = Profile(
    source="built-in", cpu="AMD EPYC (Zen 4)", level="x86-64-v4", cores=2,
    fma=1.17e11, fma_all=2.34e11, l1=2.08e11, l2=1.13e11, l3=9.5e10, memory=2.8e10, memory_all=7.3e10,
    transpose=4.0e9, transform=5.45e9, scatter=3.25e9, phases=5.1e9, gather=5.65e9,
    dispatch=1.5e-6, dispatch_thread=1.5e-6, wake=1.2e-5,
)  # fmt: skip
# CPUs whose figures are known, by maker, family and level: they need not be measured again to choose well.
RECORDED = {
    ("AuthenticAMD", "26", "x86-64-v4"): Profile(
        source="recorded", cpu="AMD EPYC (Zen 5)", level="x86-64-v4", cores=2,
        fma=2.89e11, fma_all=5.67e11, l1=3.4e11, l2=2.8e11, l3=1.3e11, memory=4.9e10, memory_all=1.13e11,
        transpose=5.5e9, transform=7.6e9, scatter=5.5e9, phases=7.7e9, gather=9.3e9,
        dispatch=8.2e-7, dispatch_thread=8.2e-7, wake=8.4e-6,
    ),
}  # fmt: skip


def dearer(rate: float, built_in: float) -> float:
    """How much dearer work of this rate is than by the built-in figures, to a quarter of an octave."""
    octaves = round(math.log2(built_in / rate) * STEPS) / STEPS
    return float(min(MOST_FACTOR, max(1 / MOST_FACTOR, 2.0**octaves)))


_current: Profile | None = None


def profile() -> Profile:
    """The figures in force: $PULLBACK_PROFILE (builtin, measure, or a file), else those kept of this CPU, else those recorded of
    its kind, else the built-in ones.

    They are looked for once in a process. Nothing is measured here unless `measure` asks for it, and then it is said.
    """
    return _current or _find()


def known() -> Profile | None:
    """What the variable names, or what is kept of this CPU; None where nothing is. Nothing is measured."""
    from pullback.cpu.engine import profile_file

    asked = environment(PROFILE_VARIABLE)
    if asked == BUILT_IN_NAME:
        return BUILT_IN
    return profile_file.read() if asked in ("", MEASURE_NAME) else profile_file.read_named(asked)


def unmeasured() -> Profile:
    """What counts where nothing is named or kept."""
    return RECORDED.get((*cpu_kind(), level().name), BUILT_IN)


def _find() -> Profile:
    global _current
    found = known()
    _current = found or unmeasured()  # while it is measured, choices go by these
    if found is None and environment(PROFILE_VARIABLE) == MEASURE_NAME:
        from pullback.cpu import calibrate
        from pullback.cpu.engine import profile_file

        if not environment(QUIET_VARIABLE) and sys.stderr is not None:
            print(MEASURING, file=sys.stderr)
        _current = calibrate.measure()
        profile_file.write(_current)
    return _current


@contextmanager
def using(figures: Profile) -> Iterator[None]:
    """Inside the block these are in force, for choices that are made there; those that are remembered stay."""
    global _current
    before = profile()
    try:
        _current = figures
        yield
    finally:
        _current = before
