"""Learning rates over time: each schedule is a pure function of where training stands, so that resuming is exact.

`factor(at, watched)` multiplies the optimizer's `lr`. `at` counts epochs (with the fraction of the one that runs) or, with
by="step", updates; `watched` is the value of each finished epoch that early stopping looks at too, lower being better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pullback.onnx.checks import number, whole, without_numpy
from pullback.onnx.errors import OnnxError
from pullback.onnx.hints import hinted

UNITS = ("epoch", "step")


def _part(at: float, length: float) -> float:
    """How much of a length is behind, from 0 to 1."""
    return min(max(at / length, 0.0), 1.0) if length else 1.0


def _cosine(start: float, end: float, part: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule in epochs or in steps (`by`)."""

    by: str = "epoch"

    def __post_init__(self) -> None:
        if self.by not in UNITS:
            raise OnnxError(f"{type(self).__name__}: by is {self.by!r}; it must be 'epoch' or 'step'")
        self._check()
        without_numpy(self)

    def _check(self) -> None:
        pass

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        """What the optimizer's learning rate is multiplied by."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The optimizer's learning rate, always."""

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        return 1.0


@hinted
@dataclass(frozen=True)
class StepDecay(Schedule):
    """Times `gamma` after every so many epochs or steps."""

    every: float
    gamma: float = 0.1

    def _check(self) -> None:
        number("StepDecay", "every", self.every, least=1)
        number("StepDecay", "gamma", self.gamma)

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        return float(self.gamma ** math.floor(at / self.every))


@dataclass(frozen=True)
class _Ramp(Schedule):
    """Linearly from 0 up to 1 during `warmup`, then down to `final` at `length`."""

    length: float
    warmup: float = 0.0
    final: float = 0.0

    def _check(self) -> None:
        who = type(self).__name__
        number(who, "length", self.length, least=0)
        number(who, "warmup", self.warmup, most=self.length)
        number(who, "final", self.final)

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        if at < self.warmup:
            return at / self.warmup
        return self._fall(_part(at - self.warmup, self.length - self.warmup))

    def _fall(self, part: float) -> float:
        raise NotImplementedError


@hinted
@dataclass(frozen=True)
class Linear(_Ramp):
    """Linearly from 0 up to 1 during `warmup`, then linearly down to `final` at `length`."""

    def _fall(self, part: float) -> float:
        return 1 + (self.final - 1) * part


@hinted
@dataclass(frozen=True)
class Cosine(_Ramp):
    """Linearly from 0 up to 1 during `warmup`, then along half a cosine down to `final` at `length`."""

    def _fall(self, part: float) -> float:
        return _cosine(1.0, self.final, part)


@hinted
@dataclass(frozen=True)
class OneCycle(Schedule):
    """Along half a cosine from `start` up to 1 in the first `rise` of the length, and down to `final` in the rest."""

    length: float
    rise: float = 0.3
    start: float = 1 / 25
    final: float = 1 / 25e4

    def _check(self) -> None:
        number("OneCycle", "length", self.length)
        number("OneCycle", "rise", self.rise, most=1.0)
        number("OneCycle", "start", self.start)
        number("OneCycle", "final", self.final)

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        top = self.rise * self.length
        if at < top:
            return _cosine(self.start, 1.0, at / top)
        return _cosine(1.0, self.final, _part(at - top, self.length - top))


@hinted
@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """Times `gamma` whenever the watched value has not become better, by `threshold` of itself, for more than `patience` epochs."""

    gamma: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    least: float = 0.0

    def _check(self) -> None:
        number("ReduceOnPlateau", "gamma", self.gamma, most=1.0)
        whole("ReduceOnPlateau", "patience", self.patience, 0)
        number("ReduceOnPlateau", "threshold", self.threshold)
        number("ReduceOnPlateau", "least", self.least)

    def factor(self, at: float, watched: Sequence[float] = ()) -> float:
        factor, best, bad = 1.0, math.inf, 0
        for value in watched:
            if best == math.inf or value < best - self.threshold * abs(best):
                best, bad = value, 0
            else:
                bad += 1
            if bad > self.patience:
                factor, bad = max(factor * self.gamma, self.least), 0
        return factor


SCHEDULES = {kind.__name__: kind for kind in (Constant, StepDecay, Linear, Cosine, OneCycle, ReduceOnPlateau)}
