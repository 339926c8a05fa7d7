"""Runs cases in a child process, so that a crash or a hang is a finding like any other and not the end of the fuzzer.

The child writes down each case before it runs it, answers with one line of JSON, and has a watchdog that prints where every thread
stands when a case takes too long.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import TESTS
from .cases import Case, from_text
from .check import Outcome, check

MOST_BYTES = 8 << 30  # of a child's address space: garbage that asks for more is a MemoryError
GRACE = 15.0  # seconds between the child's own watchdog and the parent's
CASES_EACH = 4000  # of one child, which keeps compiled code and plans
CURRENT = "current.json"


class Worker:
    """A child process that runs cases; a new one after each that died."""

    def __init__(self, limit: float = 120.0, plant: str | None = None) -> None:
        self.limit, self.plant = limit, plant
        self.folder = Path(tempfile.mkdtemp(prefix="pullback-fuzz-"))  # stays if this process is killed, with the case in it
        self._child: subprocess.Popen[bytes] | None = None
        self._ran = 0

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-c", f"from {__package__}.runner import serve; serve()", str(self.folder), str(self.limit)]
        if __package__ != "fuzz":
            path = os.pathsep.join([str(TESTS.parent), path])
        with open(self.folder / "stderr", "wb") as errors:
            return subprocess.Popen(
                command + ([self.plant] if self.plant else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def run(self, case: Case) -> Outcome:
        if self._child is not None and self._ran >= CASES_EACH:
            self._stop()
        if self._child is None:
            self._child, self._ran = self._start(), 0
        child = self._child
        assert child.stdin is not None
        self._ran += 1
        try:
            child.stdin.write(case.text().encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return self._dead(case)
        line = self._line(child)
        return Outcome(**json.loads(line)) if line.endswith(b"\n") else self._dead(case, stuck=line == b"stuck")

    def _line(self, child: subprocess.Popen[bytes]) -> bytes:
        """The child's answer; less than a line if it died, b"stuck" if it says nothing at all."""
        assert child.stdout is not None
        end, line = time.monotonic() + self.limit + GRACE, b""
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                return b"stuck"
            more = os.read(child.stdout.fileno(), 1 << 16)
            if not more:
                return line
            line += more
        return line

    def _dead(self, case: Case, stuck: bool = False) -> Outcome:
        """What ended the child, once it is gone."""
        child = self._child
        assert child is not None
        if stuck:
            child.kill()
        status = child.wait()
        self._stop()
        trace = (self.folder / "stderr").read_text(errors="replace")
        if stuck or "Timeout (" in trace:
            return Outcome("failed", case.kernel, "hang", f"no answer after {self.limit:g} s\n{_tail(trace)}")
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Outcome("failed", case.kernel, "crash", f"{how}\n{_tail(trace)}")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop(self) -> None:
        if self._child is not None:
            for stream in (self._child.stdin, self._child.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            self._child = None


def _tail(trace: str, lines: int = 12) -> str:
    """The end of what the child said, without the packages that were loaded."""
    kept = [line for line in trace.splitlines() if not line.startswith("Extension modules")]
    return "\n".join(kept[:lines])


def serve() -> None:
    """The child: cases from stdin, outcomes to stdout. Arguments: folder, limit in seconds, name of a planted defect."""
    folder, limit, *planted = sys.argv[1:]
    faulthandler.enable()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES if most == resource.RLIM_INFINITY else min(MOST_BYTES, most), most))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not look like an answer
    for name in planted:
        getattr(importlib.import_module(f"{__package__}.plants"), name)()
    current = Path(folder) / CURRENT
    for line in sys.stdin:
        current.write_text(line)
        faulthandler.dump_traceback_later(float(limit), exit=True)
        outcome: Any = check(from_text(line)).as_dict()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(outcome), file=answers, flush=True)
