"""What a command runs in: variables of the environment, output that may be closed or full, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

from pullback import registry, settings

# As a shell says it of commands that SIGINT and SIGPIPE ended.
INTERRUPTED, PIPE_CLOSED = 130, 141
AGAIN_SECONDS = 1.0


def check_environment() -> None:
    """A ValueError that names the variable whose value means nothing, before a command begins."""
    settings.get_num_threads()
    settings.current_precision()
    registry.default_backend()
    if registry.why_unavailable(registry.CPU) is None:
        from pullback.cpu.engine.machine import machine
        from pullback.cpu.engine.profile import known

        machine()
        known()


def run_guarded(command: Callable[[], int]) -> int:
    """The status of a command; where its output fails or it is broken off, one sentence and the status for that."""
    if sys.stderr is None:  # closed: nobody wants to know
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    if sys.stdout is None:
        return _complain("the standard output is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold anything
    try:
        try:
            with _interrupts_repeated():
                return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever reads the output, `head` perhaps, has seen enough
        return PIPE_CLOSED
    except OSError as error:
        return _complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    finally:
        _forget_unwritten(sys.stdout)


@contextmanager
def _interrupts_repeated() -> Iterator[None]:
    """Inside the block no Ctrl-C is lost: one that falls into a callback out of LLVM, where exceptions are ignored, comes again."""
    ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        raise KeyboardInterrupt

    def report(ignored: Any) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            reporting(ignored)

    before, reporting = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = reporting


def _complain(sentence: str, status: int = 1) -> int:
    with suppress(OSError):
        print(f"pullback: {sentence}", file=sys.stderr, flush=True)
    return status


def _forget_unwritten(stream: Any) -> None:
    """What could not be written is not tried again when the interpreter ends, with a complaint of its own."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
