"""Compiling takes seconds: that is said once on stderr, and shown while it lasts on a terminal. $PULLBACK_QUIET silences it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pullback.cpu.machine_code.variants import Variant
from pullback.settings import QUIET_VARIABLE, environment

TEXT = "pullback: compiling kernels for this CPU, once; `pullback warmup` does it ahead"
ERASE = "\r\x1b[K"

_said_in = -1  # the process that has said it
_compiled = 0
_seconds = 0.0
_shown = True


@contextmanager
def nothing_said() -> Iterator[None]:
    """For programs that show a progress bar of their own."""
    global _shown
    before = _shown
    try:
        _shown = False
        yield
    finally:
        _shown = before


@contextmanager
def compiling(variant: Variant) -> Iterator[None]:
    """Around the compilation of a kernel. Each takes a second or more, the first with the import of Numba two."""
    global _said_in, _compiled, _seconds
    speaks = _shown and not environment(QUIET_VARIABLE) and sys.stderr is not None
    if speaks and _said_in != os.getpid():
        _said_in = os.getpid()
        _write(f"{TEXT}\n")
    terminal = speaks and _is_terminal()
    if terminal:
        _write(f"{ERASE}  {_compiled} compiled in {_seconds:.0f} s, now {variant}")
    start = time.perf_counter()
    try:
        yield
    finally:
        _compiled, _seconds = _compiled + 1, _seconds + time.perf_counter() - start
        if terminal:
            _write(ERASE)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # somebody's stand-in, or closed
        return False


def _write(text: str) -> None:
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
