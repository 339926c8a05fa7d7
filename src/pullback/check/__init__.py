"""`pullback check`: the library held against the recorded answers of TF.js and ONNX Runtime and against mathematics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pullback.check import identities, ort_goldens, tfjs_goldens, tfjs_gradients
from pullback.check.outcome import Outcome, Row, tally

Tick = Callable[[str], None]


def steps() -> list[tuple[str, Callable[[], Iterator[Outcome]]]]:
    """The parts of the check, each a title and a generator of outcomes."""
    return [
        ("TensorFlow.js 4.22.0", tfjs_goldens.replay),
        ("TensorFlow.js 4.22.0", tfjs_gradients.replay),
        ("ONNX Runtime 1.19.2", ort_goldens.replay),
        ("mathematics", identities.prove_all),
    ]


def size() -> int:
    """How many outcomes a whole run yields, for a progress bar."""
    return tfjs_goldens.size() + tfjs_gradients.size() + ort_goldens.size() + identities.size()


def run(tick: Tick = lambda label: None) -> list[Row]:
    """Run everything; `tick` is called with each outcome's kernel."""
    outcomes = []
    for system, part in steps():
        for outcome in part():
            outcomes.append((system, outcome))
            tick(outcome.kernel)
    return tally(outcomes)
