"""Jobs that follow each other as one native call: what a small network costs beside its kernels is mostly Python between jobs.

A step is a plan with the names of the addresses it is given. On the threads of a team all steps are one call; elsewhere each plan
runs by itself. Jobs, pieces and so results are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pullback.cpu.engine import threads
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import SequenceJob
from pullback.cpu.engine.memory import put_work_back, take_work
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.records import WORD, Words
from pullback.cpu.engine.team import Team

A, B, OUT, WORK, FLAG = "a", "b", "out", "work", "flag"  # of an op: its two arrays in order, its result


Where = str | tuple[str, int]


class Step(NamedTuple):
    """A plan, and for each address of its record the name of what lies there, with a distance in bytes or without one.

    WORK: memory of the sequence. FLAG: a word that the plan sets where its result does not count: then nothing follows.
    """

    plan: Plan
    at: Mapping[str, Where]


class Steps(NamedTuple):
    """The steps of an op, and the bytes of their WORK. `checked`: a result that is not finite may be wrong."""

    steps: tuple[Step, ...]
    work_bytes: int
    checked: bool = False


class JobSequence:
    """Steps with the names of the addresses that a call gives, in order; `work_bytes`: of WORK."""

    def __init__(self, steps: Sequence[Step], names: Sequence[str], work_bytes: int = 0) -> None:
        self.steps, self.names, self.work_bytes = tuple(steps), tuple(names), work_bytes
        self._native: _Native | None = None

    def run(self, *given: int) -> bool:
        """Run with these addresses; False: a flag was set, and the results do not count."""
        team = threads.current_team()
        if team is None:
            return self._run_apart(dict(zip(self.names, given, strict=True)))
        native = self._native
        if native is None or not native.fits(team):
            native = self._native = _Native(self, team)
        return native.run(given)

    def _run_apart(self, given: dict[str, int]) -> bool:
        """Each plan by itself, on our own pool."""
        work, flag = take_work(self.work_bytes), np.zeros(1, np.int64)
        given |= {WORK: address_of(work), FLAG: address_of(flag)}
        for plan, at in self.steps:
            plan.run(**{field: given[name] + distance for field, (name, distance) in _places(at).items()})
            if flag[0]:
                break
        put_work_back(work)
        return not flag[0]


def _places(at: Mapping[str, Where]) -> dict[str, tuple[str, int]]:
    return {field: (where, 0) if isinstance(where, str) else where for field, where in at.items()}


class _Native:
    """A sequence for a team of one size: blocks of words, each its steps, then their records, then the flag."""

    def __init__(self, sequence: JobSequence, team: Team) -> None:
        self.team, self.size, self.threads = team, team.size(), threads.in_force()
        self.steps, self.work_bytes = sequence.steps, sequence.work_bytes
        self._blocks: list[tuple[Words, memoryview, int]] = []  # that no call uses, and their addresses
        self._uses: list[tuple[int, int, int]] = []  # word, which of the given addresses, distance
        self._work_uses: list[tuple[int, int]] = []
        self._flag_uses: list[int] = []
        self._fields: list[dict[str, int]] = []
        place, self._scratch_bytes = len(self.steps) * len(SequenceJob.FIELDS), 0
        for plan, at in self.steps:
            count = threads.threads_of(plan.pieces, plan.most_threads)
            count = count if team.shares(count) else 1
            fields = team.fields(plan.code.address, plan.pieces, count, plan.scratch_bytes)
            self._fields.append({**fields, "arguments": place, "flag": int(FLAG in at.values())})
            self._scratch_bytes = max(self._scratch_bytes, count * fields["stride"])
            for field, (name, distance) in _places(at).items():
                word = place + plan.places[field]
                if name == FLAG:
                    self._flag_uses.append(word)
                elif name == WORK:
                    self._work_uses.append((word, distance))
                else:
                    self._uses.append((word, sequence.names.index(name), distance))
            place += len(plan.template)
        self._flag = place

    def fits(self, team: Team) -> bool:
        """Whether it was made for this team, and for as many threads as are in force."""
        return self.team is team and self.size == team.size() and self.threads == threads.in_force()

    def run(self, given: tuple[int, ...]) -> bool:
        try:
            block = self._blocks.pop()
        except IndexError:
            block = self._new_block()
        _, words, address = block
        for word, which, distance in self._uses:
            words[word] = given[which] + distance
        work = None
        if self.work_bytes:
            work = take_work(self.work_bytes)
            start = address_of(work)
            for word, distance in self._work_uses:
                words[word] = start + distance
        scratch = threads.take_scratch(self._scratch_bytes)
        fine = self.team.run_sequence(address, len(self.steps), self.size, scratch.address) == len(self.steps)
        scratch.put_back()
        if work is not None:
            put_work_back(work)
        if not fine:
            words[self._flag] = 0
        self._blocks.append(block)
        return fine

    def _new_block(self) -> tuple[Words, memoryview, int]:
        memory = np.zeros(self._flag + 1, np.int64)
        address = address_of(memory)
        flag = address + WORD * self._flag
        for number, (fields, step) in enumerate(zip(self._fields, self.steps, strict=True)):
            record = fields["arguments"]
            memory[record : record + len(step.plan.template)] = step.plan.template
            given = {**fields, "arguments": address + WORD * record, "flag": flag if fields["flag"] else 0}
            for name, value in given.items():
                memory[number * len(SequenceJob.FIELDS) + SequenceJob.place(name)] = value
        memory[self._flag_uses] = flag
        return memory, memory.data, address
