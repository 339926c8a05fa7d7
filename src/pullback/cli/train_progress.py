"""What `pullback train` shows while it runs: a bar with live figures on a terminal, and a line for each epoch everywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pullback.cli.console import HAS_RICH

SHARES = ("accuracy", "binary_accuracy", "top5")  # metrics that read better in percent
NOT_SHOWN = ("epoch", "lr", "seconds")
VALID = "valid_"


def figure(name: str, value: float) -> str:
    """A figure in words: 97.8 % for shares, four digits for the rest."""
    return f"{100 * value:.2f} %" if name.removeprefix(VALID) in SHARES else f"{value:.4f}"


def epoch_line(number: int, epochs: int, figures: Mapping[str, float], seconds: float) -> str:
    """The figures of an epoch: those of the training data, then those of the held-out data."""
    own = [f"{name} {figure(name, value)}" for name, value in figures.items() if not name.startswith(VALID) and name not in NOT_SHOWN]
    held = [f"{name.removeprefix(VALID)} {figure(name, value)}" for name, value in figures.items() if name.startswith(VALID)]
    judged = f"   held out: {', '.join(held)}" if held else ""
    return f"epoch {number:>{len(str(epochs))}}/{epochs}   {', '.join(own)}{judged}   {seconds:.1f} s"


class Display:
    """Called by the trainer: `step` after each step, `epoch` after each epoch. `quiet` for ranks that print nothing."""

    def __init__(self, epochs: int, first: int, steps: int | None, quiet: bool) -> None:
        self.epochs, self.steps, self.quiet, self.number = epochs, steps, quiet, first
        self.began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A bar inside the block, where stderr is a terminal that shows one."""
        if self.quiet or not HAS_RICH or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
        # Redrawn by the training thread alone, some times in a second: a thread of its own would take time from the kernels.
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False)
        with self._bar:
            self._start()
            yield
        self._bar = None

    def _start(self) -> None:
        if self._bar is not None:
            title = f"epoch {self.number + 1}/{self.epochs}"
            if self._task is None:
                self._task, self._drawn = self._bar.add_task(title, total=self.steps, now=""), 0.0
            else:
                self._bar.reset(self._task, description=title, total=self.steps, now="")

    def step(self, figures: Mapping[str, float]) -> None:
        if self._bar is None:
            return
        now = ", ".join(f"{name} {figure(name, value)}" for name, value in figures.items() if name not in NOT_SHOWN)
        self._bar.update(self._task, advance=1, now=now)
        if time.monotonic() - self._drawn > 0.1:
            self._drawn = time.monotonic()
            self._bar.refresh()

    def epoch(self, figures: Mapping[str, float]) -> None:
        self.number += 1
        seconds, self.began = time.monotonic() - self.began, time.monotonic()
        if self.quiet:
            return
        line = epoch_line(self.number, self.epochs, figures, seconds)
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.print(line, highlight=False)  # above the bar
        else:
            print(line, flush=True)
        if self.number < self.epochs:
            self._start()
