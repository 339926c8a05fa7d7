"""Peers that live in a process of their own: arrays and commands over pipes, one reply per command, a time limit per case.

A message is one line of JSON and, where its `arrays` list says so, the bytes of those arrays in order. The helper times
single runs on its own clock, on request, so that it can take turns with the others.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pullback.bench.cases import Case, Task
from pullback.bench.peers.base import PeerError, Prepared, UnsupportedError
from pullback.rules import Array

CASE_SECONDS = 30.0  # from preparing a case to its last run
ROUNDS = 3


def peers_folder() -> Path:
    """Where `make peers` puts the environments of these systems."""
    return Path(os.environ.get("PULLBACK_PEERS", ".peers"))


def describe(case: Case) -> dict[str, Any]:
    """A case's geometry for a helper, which knows nothing of our classes."""
    w = case.window
    return {
        "batch": case.batch, "channels_in": case.channels_in, "channels_out": case.channels_out, "groups": case.groups,
        "size": w.input_size, "output_size": w.output_size, "kernel": w.kernel,
        "stride": w.stride, "padding": case.pads, "dilation": w.dilation,
    }  # fmt: skip


class Helper:
    """A helper process, started when first asked and again after it broke off."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.command = name, list(command)
        self.environment = {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self.deadline = 0.0

    def prepare(self, task: Task, case: Case, threads: int, arrays: Mapping[str, Array]) -> None:
        """Hand a task over; UnsupportedError where the helper says so. The time limit of the case starts here."""
        self.deadline = time.monotonic() + CASE_SECONDS
        header = {"command": "prepare", "op": task.op, "threads": threads, "case": describe(case)}
        self.ask(header, arrays)

    def prepared(self, result: Any) -> Prepared:
        return Prepared(lambda: self.time(1), result, self.time, ROUNDS)

    def time(self, calls: int) -> float:
        """Seconds per run over several runs in a row there."""
        return float(self.ask({"command": "time", "calls": calls})[0]["seconds"])

    def result(self) -> list[Array]:
        """Run once and fetch what came out."""
        return self.ask({"command": "result"})[1]

    def ask(self, header: dict[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[dict[str, Any], list[Array]]:
        """Send a message and wait for its reply; PeerError if the process dies or the case's time is up."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environment
            )
        assert self.process.stdin is not None
        blocks = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        listed = [{"name": n, "dtype": a.dtype.name, "shape": a.shape} for n, a in blocks.items()]
        try:
            self.process.stdin.write(json.dumps({**header, "arrays": listed}).encode() + b"\n")
            for block in blocks.values():
                self.process.stdin.write(block.tobytes())
            self.process.stdin.flush()
            line = self._read_line()
            reply = json.loads(line)
            received = [self._read_array(entry) for entry in reply.get("arrays", [])]
        except BrokenPipeError:
            self._fail("crashed")
        if "unsupported" in reply:
            raise UnsupportedError(reply["unsupported"])
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply, received

    def _read_array(self, entry: dict[str, Any]) -> Array:
        dtype = np.dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        return np.frombuffer(self._read(count * dtype.itemsize), dtype).reshape(entry["shape"])

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):  # one byte at a time, so that no array byte is taken with the line
            line += self._read(1)
        return line

    def _read(self, count: int) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        pipe, parts, left = self.process.stdout.fileno(), [], count
        while left:
            ready, _, _ = select.select([pipe], [], [], max(0.0, self.deadline - time.monotonic()))
            if not ready:
                self._fail(f"over the limit of {CASE_SECONDS:.0f} s a case")
            part = os.read(pipe, min(left, 1 << 20))
            if not part:
                self._fail("crashed")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _fail(self, why: str) -> None:
        self.close()
        raise PeerError(f"{self.name} {why}")

    def close(self) -> None:
        """End the process, if there is one."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what was still buffered for a dead process
                    continue
