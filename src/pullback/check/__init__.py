"""`pullback check`: the library held against the recorded answers of TF.js and ONNX Runtime and against mathematics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pullback.check import identities, ort_goldens, tfjs_goldens, tfjs_gradients
from pullback.check.outcome import Outcome, Row, tally

Tick = Callable[[str], None]


QUICK = 8  # one case in so many of each kernel, for a check of an installation


def steps() -> list[tuple[str, Callable[[int], Iterator[Outcome]]]]:
    """The parts of the check, each a title and a generator of outcomes, of every so manieth case."""
    return [
        ("TensorFlow.js 4.22.0", tfjs_goldens.replay),
        ("TensorFlow.js 4.22.0", tfjs_gradients.replay),
        ("ONNX Runtime 1.19.2", ort_goldens.replay),
        ("mathematics", identities.prove_all),
    ]


def size(every: int = 1) -> int:
    """How many outcomes a run yields, for a progress bar."""
    return sum(part.size(every) for part in (tfjs_goldens, tfjs_gradients, ort_goldens, identities))


def run(tick: Tick = lambda label: None, every: int = 1) -> list[Row]:
    """Run everything, or one case in so many; `tick` is called with each outcome's kernel."""
    outcomes = []
    for system, part in steps():
        for outcome in part(every):
            outcomes.append((system, outcome))
            tick(outcome.kernel)
    return tally(outcomes)
