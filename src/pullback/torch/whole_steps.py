"""Whole steps of a model, with what its layers have chosen and on plain PyTorch in turns; plain PyTorch is kept where it is faster.

Layers that are fast one by one need not make a fast model: caches, memory and the Python between layers belong to none of them.
So once every layer of a step has settled, a few steps go all one way, by turns. A step begins at the call of the layer that is
called first, and ends with that layer's backward pass, which comes last, or where there is none with the last layer's call: what a
program does between its steps is not in it. All accelerated layers of a model share one `WholeSteps`; it looks at a bounded number
of steps and then at none.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from pullback.torch import measuring
from pullback.torch.measuring import NONE, Verdict

if TYPE_CHECKING:
    from pullback.torch.choices import Choices, Key

FIRST_SAMPLES = 1  # of each way, which do not count
FEW_SAMPLES, MANY_SAMPLES = 2, 8  # of each way, which count: few where one way is clearly the faster
MOST_COMPARED = 2 * (FIRST_SAMPLES + MANY_SAMPLES) + 2  # steps until a kind is decided whose layers have settled
CLEAR = 1.06
MARGIN = 0.99  # ours must take at most this share of plain PyTorch's time
MOST_KINDS = 8  # of steps that are compared, told apart by the first layer's input
MOST_STEPS = 1000  # after which nothing is waited for any more
OP = "whole step"  # as verdicts name it
PLAIN_FIRST = (True, False, False, True)  # the turns, again and again: what happens every other step happens to both ways


class _Kind:
    """Samples of the steps of one kind, and the layers that they call."""

    def __init__(self) -> None:
        self.turns = 0
        self.samples: dict[bool, list[float]] = {True: [], False: []}  # by whether the step was plain PyTorch
        self.met: dict[tuple[int, Key], tuple[weakref.ref[Any], Choices]] = {}

    def next(self) -> bool:
        """Whether the next step is plain PyTorch."""
        self.turns += 1
        return PLAIN_FIRST[(self.turns - 1) % len(PLAIN_FIRST)]

    def seconds(self) -> tuple[float, float] | None:
        """The least time of a plain step and of ours."""
        theirs, ours = (self.samples[plain][FIRST_SAMPLES:] for plain in (True, False))
        return (min(theirs), min(ours)) if theirs and ours else None

    def is_over(self) -> bool:
        count = min(map(len, self.samples.values())) - FIRST_SAMPLES
        if count < FEW_SAMPLES:
            return False
        theirs, ours = self.seconds() or (0.0, 0.0)
        return count >= MANY_SAMPLES or max(theirs, ours) >= CLEAR * min(theirs, ours)


class WholeSteps:
    """Of one model. Copies of the model begin with what was found; pickles begin anew."""

    def __init__(self) -> None:
        self.open = True
        self.found: dict[Key, Verdict] = {}
        self.steps = 0
        self._kinds: dict[Key, _Kind] = {}
        self._thread: int | None = None  # steps of other threads are not looked at
        self._first: int | None = None  # id of the layer: a model that is let go must not wait for the garbage collector
        self._key: Key | None = None  # kind of the step that runs
        self._start = self._end = 0.0
        self._unsettled = False  # whether a layer of this step takes turns of its own
        self._plain: bool | None = None  # whether this step is plain PyTorch's; None: it is no sample
        self._goes_back = self._went_back = False

    def __reduce__(self) -> Any:
        return WholeSteps, ()

    def __deepcopy__(self, memo: Any) -> WholeSteps:
        copied = WholeSteps()
        copied.open, copied.found = self.open, dict(self.found)
        return copied

    def undecided(self) -> bool:
        """Whether the kind of step that was last seen is still to be compared."""
        return self.open and self._key is not None and self._key not in self.found

    def unsettled(self) -> None:
        """A layer of this step is measured by itself."""
        self._unsettled = True

    def looks_at(self, layer: Any) -> bool:
        """Whether a call of this layer matters here: asked at every call, so in haste."""
        return self.open and (self._plain is not None or id(layer) == self._first or self._first is None)

    def is_looking_at(self, layer: Any) -> bool:
        """Whether the layer must be called by itself: a step begins with it, or is plain PyTorch's."""
        return self.open and (self._first is None or id(layer) == self._first or self._plain is True)

    def call(self, layer: Any, choices: Choices, key: Key, input: torch.Tensor, *more: Any) -> Any:
        """A layer's call, on plain PyTorch if the step is."""
        if self._thread is None:
            self._thread, self._first = threading.get_ident(), id(layer)
        if self._thread != threading.get_ident():
            return layer.settled(input, *more)
        begins = id(layer) == self._first and (self._went_back or not self._goes_back)
        if begins:
            self._begin(key)
        if self._plain is not None and self._key is not None:
            self._kinds[self._key].met[id(layer), key] = weakref.ref(layer), choices
        y = layer.plain(input, *more) if self._plain else layer.settled(input, *more)
        if begins:
            part = y[0] if isinstance(y, tuple) else y
            self._went_back, self._goes_back = False, part.requires_grad
            if part.grad_fn is not None:
                part.grad_fn.register_hook(self._note_backward)
        if not self._goes_back:
            self._end = measuring.clock()
        return y

    def _note_backward(self, *_: Any) -> None:
        self._went_back, self._end = True, measuring.clock()

    def _begin(self, key: Key) -> None:
        """A step is over and another begins."""
        if key == self._key and self._plain is not None and not self._unsettled:
            kind = self._kinds[key]
            kind.samples[self._plain].append(self._end - self._start)
            if kind.is_over():
                self._decide(key, kind)
        settled = key == self._key and not self._unsettled
        self._key, self._unsettled, self._plain = key, False, None
        self.steps += 1
        if self.steps > MOST_STEPS or len(self.found) >= MOST_KINDS:
            self.open = False
        elif settled and key not in self.found:
            self._plain = self._kinds.setdefault(key, _Kind()).next()
        self._start = measuring.clock()

    def _decide(self, key: Key, kind: _Kind) -> None:
        seconds = kind.seconds()
        assert seconds is not None
        theirs, ours = seconds
        wins = ours <= MARGIN * theirs
        self.found[key] = Verdict(frozenset([OP]) if wins else NONE, {OP: (theirs, ours)})
        if not wins:
            for (_, layer_key), (met, choices) in kind.met.items():
                if (layer := met()) is not None:
                    choices.give_up(layer, layer_key, {OP: (theirs, ours)})
        del self._kinds[key]
