"""What `pullback train` shows while it runs: a bar with live figures on a terminal, and a line for each epoch everywhere."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pullback.cli.console import HAS_RICH
from pullback.cli.train_files import INSTALL
from pullback.onnx.drawing.curves import VALID, figure_names

if TYPE_CHECKING:
    from pullback.onnx.train.trainer import Trainer

SHARES = ("accuracy", "binary_accuracy", "top5")  # metrics that read better in percent
REDRAWN_SECONDS = 0.1


def figure(name: str, value: float) -> str:
    """A figure in words: 97.82 % for shares, four digits for the rest."""
    return f"{100 * value:.2f} %" if name.removeprefix(VALID) in SHARES else f"{value:.4f}"


def figures(values: Mapping[str, float], prefix: str = "") -> str:
    """The figures of an epoch in a row: of the training data, or with the prefix of the held-out data."""
    names = figure_names([values])
    return ", ".join(
        f"{name.replace('_', ' ')} {figure(name, values[prefix + name])}" for name in names if prefix + name in values
    )


class Display:
    """`step` and `epoch` are for the trainer to call. `quiet`: a rank that prints nothing."""

    def __init__(self, epochs: int, steps: int | None, quiet: bool) -> None:
        self.epochs, self.steps, self.quiet = epochs, steps, quiet
        self._bar: Any = None
        self._task: Any = None
        self._drawn = 0.0

    @contextmanager
    def shown(self, trainer: Trainer) -> Iterator[None]:
        """A bar inside the block, where stderr is a terminal that shows one."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        if not HAS_RICH:
            print(f"no progress bar: it needs rich, {INSTALL}", file=sys.stderr)
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        texts = TextColumn("{task.description}"), TextColumn("{task.fields[now]}")
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1])
        # Redrawn by the training thread itself: a thread of its own would take time from the kernels.
        bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False)
        with bar:
            total = None if self.steps is None else self.steps * self.epochs
            self._task = bar.add_task("", total=total, completed=trainer.steps, now="")
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def step(self, trainer: Trainer) -> None:
        if self._bar is None or time.monotonic() - self._drawn < REDRAWN_SECONDS:
            return
        self._drawn = time.monotonic()
        title, now = f"epoch {trainer.epoch + 1}/{self.epochs}", figures(trainer.epoch_mean.result())
        self._bar.update(self._task, completed=trainer.steps, description=title, now=now, refresh=True)

    def epoch(self, trainer: Trainer) -> None:
        if self.quiet:
            return
        found = trainer.history.epochs[-1]
        judged = figures(found, VALID)
        line = f"epoch {trainer.epoch:>{len(str(self.epochs))}}/{self.epochs}   {figures(found)}"
        line += f"   held out: {judged}" if judged else ""
        line += f"   {found['seconds']:.1f} s"
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.print(line, highlight=False)  # above the bar
        else:
            print(line, flush=True)


class Interruption:
    """Ctrl-C, which ends training between two steps: what a step changes is changed as a whole, and can be saved."""

    asked = between_steps = False

    def check(self, trainer: Trainer) -> None:
        """For the trainer to call where it may end."""
        if self.asked:
            self.between_steps = True
            raise KeyboardInterrupt


@contextmanager
def ending_between_steps() -> Iterator[Interruption]:
    """Inside the block the first Ctrl-C is remembered; a second one is as usual, at once."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: Any) -> None:
        found.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, remember)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
