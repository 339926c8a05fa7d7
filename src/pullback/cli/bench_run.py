"""Running what a bench command selected: a progress bar, JSON, picture and tables, whatever becomes of reader or run."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli.bench_options import themed_files
from pullback.cli.console import progress

if TYPE_CHECKING:
    from pullback.bench import Selection

Save = Callable[[Any, Path], None]
Draw = Callable[[Any, Path, str], None]


@contextmanager
def timing(command: str, found: Any, size: int, save: Save, json: Path | None) -> Iterator[Callable[[str], None]]:
    """A block that fills `found` behind a progress bar; it is saved when the block ends, and also when it is broken off."""
    from pullback.bench.trust import load_warning

    if sentence := load_warning(found.machine):  # at once: who reads it may prefer to wait
        print(f"{command}: {sentence}", file=sys.stderr)
    try:
        # A bar that redraws itself from a thread of its own would disturb what is timed.
        with progress("timing", size, in_background=False) as tick:
            yield tick
    except BaseException:
        _stop_repeating()
        if json is not None:
            save(found, json)
            print(f"{command}: broken off; {json} has what was measured so far", file=sys.stderr)
        raise
    if json is not None:
        save(found, json)


def _stop_repeating() -> None:
    """The command's handler of Ctrl-C rings again after a second (surroundings.py): not into the file that is being written."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def draw_pictures(draw: Draw, found: Any, picture: Path | None, theme: str) -> None:
    for name, path in themed_files(picture, theme).items() if picture is not None else ():
        draw(found, path, name)


def run_selection(command: str, selection: Selection, options: argparse.Namespace) -> int:
    """Time, save, draw, and print last: a reader of stdout that has gone away takes nothing with it."""
    from pullback import bench
    from pullback.bench import plot, results, table

    found = bench.frame(selection)
    try:
        with timing(command, found, selection.size(), results.save, options.json) as tick:
            bench.run(selection, tick, into=found)
    except MemoryError as error:
        print(f"{command}: a case does not fit into memory: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if found.rows:
            table.print_results(found)
        raise
    if any(row.ratios() for row in found.rows):
        draw_pictures(plot.draw, found, options.plot, options.theme)
    elif options.plot is not None:
        print(f"{command}: no picture, since no case was compared with a peer", file=sys.stderr)
    table.print_results(found)
    return 1 if found.wrong or not any(row.ours.samples for row in found.rows) else 0
