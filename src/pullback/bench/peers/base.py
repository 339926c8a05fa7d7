"""What a participant of the benchmark offers: whether it is there, and how it prepares a task for timing and checking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

from pullback.bench.cases import Task
from pullback.bench.data import Data
from pullback.registry import Kernel
from pullback.rules import Array, Layout

Clock = Callable[[], float]
FULL_NAMES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "ort": "ONNX Runtime", "tfjs": "TF.js"}


class UnsupportedError(Exception):
    """A participant has no such op, dtype or geometry; the text says which."""


class PeerError(Exception):
    """A participant broke off: it crashed or ran over its time limit."""


@dataclass(frozen=True)
class Prepared:
    """A task ready to run: data converted, code compiled.

    `run` does the work once. `result` does it once and returns the answer as NumPy arrays, channels last. `time`, where a
    participant lives in another process, runs it that many times there and returns the seconds of each on that clock. `kernels`
    are our own that run, one for each op.
    """

    run: Callable[[], Any]
    result: Callable[[], tuple[Array, ...]]
    time: Callable[[int], float] | None = None
    max_rounds: int | None = None
    kernels: tuple[Kernel, ...] = ()

    def seconds(self, calls: int, clock: Clock) -> float:
        """Seconds per call, over several calls in a row."""
        if self.time is not None:
            return self.time(calls)
        start = clock()
        for _ in range(calls):
            self.run()
        return (clock() - start) / calls


class Peer(Protocol):
    """A participant. `slow` ones run only when asked for by name."""

    name: str
    layouts: tuple[Layout, ...]
    slow: bool

    def missing(self) -> str | None:
        """Why it cannot take part on this machine, or None; must not import anything heavy."""

    def version(self) -> str: ...

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        """Convert the data and compile; UnsupportedError where it has no such op."""

    def close(self) -> None:
        """Let go of what outlives a task."""


def package_missing(package: str, extra: str) -> str | None:
    """Why an optional package is missing, or None."""
    return None if find_spec(package) else f"{package} is not installed: pip install 'pullback[{extra}]'"


def package_version(*packages: str) -> str:
    """The version of the first of these distributions that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"
