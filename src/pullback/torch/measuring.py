"""Times of a layer's ops on PyTorch's kernels and on ours, taken in turns inside the steps of a training; the faster are kept.

A layer has named ops (a convolution: forward, input gradient, filter gradient), each with two ways. The layer's calls take turns:
one on PyTorch's kernels, the next on ours, each op timed where its result is needed anyway. After a few turns a verdict names the
ops that are ours. `choices` keeps trials and verdicts of a layer; the layer itself (layers.Accelerated) makes the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

WHOLE = ("forward", "backward")  # the ops of a layer that go one way together
NONE: frozenset[str] = frozenset()

FIRST_SAMPLES = 1  # of each way, which do not count: they compile, allocate, warm up
FEW_SAMPLES, MANY_SAMPLES = 2, 4  # of each way, which count: few where one way is clearly the faster
CLEAR = 1.15
MOST_CALLS = 6 * MANY_SAMPLES  # after which a backward pass that never came is no longer waited for
MARGIN = 0.98  # ours must take at most this share of PyTorch's time: within the noise PyTorch keeps its own
# As a whole our way must win by more, for what it costs elsewhere in a step, where no op's time shows it: Python that runs on cold
# caches, other memory in use. Whether all of it pays is then seen in whole steps (whole_steps.py).
WHOLE_MARGIN, ELSEWHERE = 0.97, 1e-5  # seconds for each pass
NEARLY = 1.3  # of PyTorch's time, up to which an op stays ours beside others of the same native call
NATIVE_SECONDS = 5e-6  # what a call of PyTorch's layer costs beside its ops

clock = time.perf_counter


@dataclass(frozen=True)
class Verdict:
    """The ops that are ours, and of each op that was measured the seconds on PyTorch's kernels and on ours."""

    ours: frozenset[str]
    seconds: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        told = [f"{op} {theirs * 1e3:.3g} and {ours * 1e3:.3g}" for op, (theirs, ours) in self.seconds.items()]
        return f"measured ms, PyTorch's and ours: {', '.join(told)}" if told else "it ran too seldom to be measured"


class Trial:
    """The samples of a layer's ops for inputs of one kind."""

    def __init__(self, ops: tuple[str, ...], separate: bool, expected: bool, chosen: Verdict | None = None) -> None:
        """separate: each op goes its own way. expected: whether ours is, by the rules, the faster (for ops that never run).

        chosen: what such a trial has found, now on trial as a whole against PyTorch's own layer: ops that are fast one by one need
        not make a fast layer, since much around them is not theirs (memory, caches, Python).
        """
        self.ops, self.separate, self.expected, self.chosen = ops, separate, expected, chosen
        self.calls = 0
        self.beside: list[float] = []  # what calls through our function took beside the ops, where each op goes its own way
        self.samples: dict[tuple[str, bool], list[float]] = {(op, ours): [] for op in ops for ours in (False, True)}

    def turn(self, scale: float) -> Turn:
        """That of the next call: PyTorch's, ours, and so on, or of the kind with fewer samples. Its seconds are divided by `scale`.

        (A checkpoint calls a layer twice and goes back once: if turns went by calls alone, always from the same kind.)
        """
        self.calls += 1
        theirs, ours = (min(len(self.samples[op, way]) for op in self.ops) for way in (False, True))
        return Turn(self, ours < theirs or (ours == theirs and self.calls % 2 == 0), scale)

    def add(self, op: str, ours: bool, seconds: float) -> None:
        samples = self.samples[op, ours]
        if len(samples) < FIRST_SAMPLES + MANY_SAMPLES:
            samples.append(seconds)

    def least(self, op: str, ours: bool) -> float | None:
        """The least time of an op: what disturbs a step only makes it longer."""
        return min(self.samples[op, ours][FIRST_SAMPLES:], default=None)

    def second(self) -> Trial:
        """The trial as a whole of what this one has found."""
        return Trial(WHOLE if len(self.ops) > 1 else WHOLE[:1], False, self.expected, self.verdict())

    def is_over(self) -> bool:
        return self.calls >= MOST_CALLS or all(map(self._is_clear, self.ops))

    def _is_clear(self, op: str) -> bool:
        count = min(len(self.samples[op, ours]) for ours in (False, True)) - FIRST_SAMPLES
        theirs, ours = self.least(op, False), self.least(op, True)
        if theirs is None or ours is None or count < FEW_SAMPLES:
            return False
        return count >= MANY_SAMPLES or max(theirs, ours) >= CLEAR * min(theirs, ours)

    def verdict(self) -> Verdict:
        seconds = {}
        for op in self.ops:
            theirs, ours = self.least(op, False), self.least(op, True)
            if theirs is not None and ours is not None:
                seconds[op] = (theirs, ours)
        all_ours = frozenset(self.ops)
        if not seconds and self.chosen is not None:
            return self.chosen
        if not seconds:
            return Verdict(all_ours if self.expected else NONE, seconds)
        if self.separate:
            chosen = frozenset(op for op, (theirs, ours) in seconds.items() if ours <= MARGIN * theirs)
            saved = sum(seconds[op][0] - seconds[op][1] for op in chosen)
            costs = max(min(self.beside[FIRST_SAMPLES:], default=0.0) - NATIVE_SECONDS, 0.0)
            unknown = all_ours - seconds.keys() if self.expected else NONE
            return Verdict(chosen | unknown if saved > costs else NONE, seconds)
        theirs, ours = (sum(pair[way] for pair in seconds.values()) for way in (0, 1))
        wins = ours + ELSEWHERE * len(self.ops) <= WHOLE_MARGIN * theirs
        if self.chosen is not None:
            return Verdict(self.chosen.ours if wins else NONE, {**self.chosen.seconds, "in all": (theirs, ours)})
        return Verdict(all_ours if wins else NONE, seconds)


def nearly_ours(seconds: dict[str, tuple[float, float]], ops: tuple[str, ...]) -> frozenset[str]:
    """The ops that are ours in one step with the layers that follow: there what a call costs is shared."""
    unknown = (1.0, 1.0)
    return frozenset(op for op in ops if seconds.get(op, unknown)[1] <= NEARLY * seconds.get(op, unknown)[0])


class Turn:
    """One call of a layer on trial, all of it on one kind of kernels."""

    def __init__(self, trial: Trial, ours: bool, scale: float = 1.0) -> None:
        self.trial, self.ours, self.scale = trial, ours, scale
        self.inside = self.beside = 0.0  # seconds of ops in this pass, and of the call beside them

    def add(self, op: str, seconds: float) -> None:
        self.trial.add(op, self.ours, seconds / self.scale)

    def timed(self, op: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """function(...), as this op of the layer."""
        start = clock()
        found = function(*arguments, **keywords)
        seconds = clock() - start
        self.inside += seconds
        self.add(op, seconds)
        return found

    def take(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(...) as the layer's forward, and its backward pass, if one comes, from the first of its nodes to the last.

        They are the ops of a layer that goes one way as a whole; else, what they take beside the ops is the cost of the call.
        """
        before = torch.autograd._get_sequence_nr()
        start = clock()
        found = function(*arguments)
        self.took(WHOLE[0], clock() - start)
        nodes = list(nodes_of(found, before)) if len(self.trial.ops) > 1 else []
        backward = _Backward(self, len(nodes))
        for node in nodes:
            node.register_prehook(backward.begins)
            node.register_hook(backward.ends)
        return found

    def took(self, op: str, seconds: float) -> None:
        """Forward or backward pass as a whole."""
        if not self.trial.separate:
            self.add(op, seconds)
            return
        self.beside += seconds - self.inside
        self.inside = 0.0
        if op == WHOLE[1] or len(self.trial.ops) == 1:
            self.trial.beside.append(self.beside / self.scale)


class _Backward:
    """The time of a backward pass, told by the nodes of its graph."""

    def __init__(self, turn: Turn, nodes: int) -> None:
        self.turn, self.left, self.start = turn, nodes, 0.0

    def begins(self, *_: Any) -> None:
        self.start = self.start or clock()

    def ends(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.turn.took(WHOLE[1], clock() - self.start)


def nodes_of(result: Any, first: int) -> Iterator[Any]:
    """The autograd nodes behind a result that are not older than `first`."""
    parts = result if isinstance(result, tuple) else (result,)
    waiting = [part.grad_fn for part in parts if isinstance(part, torch.Tensor)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node._sequence_nr() < first or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
