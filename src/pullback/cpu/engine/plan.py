"""A plan: a kernel's machine code with all its arguments but the array addresses, ready to run many times."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.engine import threads
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.records import Record
from pullback.cpu.machine_code import dry_run
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Code, Variant

# Up to so many bytes moved, waking another thread costs more than it saves, by the built-in figures; and then so many for each
# thread, some 5 microseconds of work. Plans of convolutions count four multiplications as a byte.
PARALLEL_BYTES, THREAD_BYTES = 96 << 10, 64 << 10


def threads_that_pay(moved_bytes: int) -> int:
    """How many threads at most should share so much work."""
    work = moved_bytes / profile().sharing
    return max(2, int(work // THREAD_BYTES)) if work > PARALLEL_BYTES else 1


@dataclass(frozen=True)
class Plan:
    """What is fixed about a call; `keep` holds the tables whose addresses are in the template.

    `checks`: whether it looks for faults in what it is given, where its record has a field for that.
    """

    code: Code
    template: np.ndarray[Any, np.dtype[np.int64]]
    places: dict[str, int]
    pieces: int
    scratch_bytes: int
    most_threads: int
    keep: tuple[Any, ...]
    checks: bool = True

    def run(self, **addresses: int) -> None:
        """Run with these array addresses."""
        block = self.template.copy()
        for name, address in addresses.items():
            block[self.places[name]] = address
        if self.code.address == 0:
            self._pretend(addresses)
            return
        threads.run(self.code.address, address_of(block), self.pieces, self.scratch_bytes, self.most_threads)

    def _pretend(self, addresses: dict[str, int]) -> None:
        """In a dry run: report what it is to report, and do nothing."""
        run = dry_run.current
        if run is None:
            raise RuntimeError("a plan of a dry run was kept, which has no code")
        for name in dry_run.FLAGS:
            if name in addresses and self.checks:
                ctypes.c_int64.from_address(addresses[name]).value = run.faulty


def make_plan(
    variant: Variant, record: type[Record], pieces: int, scratch_bytes: int, moved_bytes: int, given: dict[str, Any],
    more: tuple[Any, ...] = (),
) -> Plan:  # fmt: skip
    """A plan from the fields of a kernel's record: numbers, tables (passed by address), None for addresses given at the call.

    `given` may hold more than the record has. `more` are tables that other tables point to.
    """
    compiled = code(variant)
    if compiled.address and compiled.fields != tuple(name for name, _ in record.FIELDS):
        raise TypeError(f"{variant} takes another record than {record.__name__}")
    keep, values, places = [], {}, {}
    for place, (name, _) in enumerate(record.FIELDS):
        value = given[name]
        if isinstance(value, np.ndarray):
            value = np.ascontiguousarray(value)
            keep.append(value)
            value = address_of(value)
        if value is None:
            places[name] = place
            value = 0
        values[name] = value
    return Plan(
        compiled, record.pack(values), places, pieces, scratch_bytes, threads_that_pay(moved_bytes), (*keep, *more),
        bool(values.get("check", True)),
    )  # fmt: skip
