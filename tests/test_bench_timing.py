"""Fair turns on a fake clock, and the helper processes of the slow peers."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import FakeClock

from pullback.bench import timing
from pullback.bench.peers.base import PeerError, Prepared, UnsupportedError
from pullback.bench.peers.helper import Helper


def test_turns_interleave_rotate_and_keep_the_collector_off() -> None:
    clock, order = FakeClock(), []

    def participant(name: str, seconds: float) -> Prepared:
        def work() -> None:
            order.append(name)
            assert not gc.isenabled()
            clock.step(seconds)

        return Prepared(work, lambda: ())

    turns = timing.take_turns({"a": participant("a", 1.0), "b": participant("b", 2.0)}, 0, clock, lambda seconds: None)
    assert gc.isenabled()
    assert "".join(order) == "aabb" + "ab" + "ba" + "ab" + "ba" + "ab"  # warm-up, then five rounds
    assert turns["a"].samples == pytest.approx([1.0] * timing.MIN_ROUNDS)
    assert turns["b"].samples == pytest.approx([2.0] * timing.MIN_ROUNDS)


def test_short_ops_are_warmed_up_and_sampled_in_batches() -> None:
    clock, slow_start = FakeClock(), iter([0.5])
    short = Prepared(lambda: clock.step(next(slow_start, 2.0**-13)), lambda: ())
    turns = timing.take_turns({"short": short}, 0.01, clock, lambda seconds: None)["short"]
    assert turns.calls == math.ceil(timing.SAMPLE_SECONDS * 2**13)  # not misled by the first call
    assert turns.samples == pytest.approx([2.0**-13] * timing.MIN_ROUNDS)


def test_sleepy_participant_is_woken_before_its_sample() -> None:
    clock = FakeClock()
    slow: list[float] = []
    usual, asleep = 2.0**-9, 2.0**-8 * 1.5

    def work() -> None:
        clock.step(slow.pop() if slow else usual)

    def fall_asleep(seconds: float) -> None:
        slow[:] = [asleep] * 3

    turns = timing.take_turns({"a": Prepared(work, lambda: ())}, 0, clock, fall_asleep)["a"]
    assert turns.samples == [usual] * timing.MIN_ROUNDS


def test_budget_and_round_limits() -> None:
    clock = FakeClock()
    generous = timing.take_turns({"a": Prepared(lambda: clock.step(1.0), lambda: ())}, 20.0, clock, lambda s: None)
    assert len(generous["a"].samples) == 20
    few = Prepared(lambda: None, lambda: (), time=lambda calls: 1.0, max_rounds=2)
    assert len(timing.take_turns({"a": few}, 20.0, clock, lambda s: None)["a"].samples) == 2


def test_a_participant_that_breaks_off_keeps_its_samples() -> None:
    clock, left = FakeClock(), iter(range(5))

    def frail() -> None:
        if next(left, None) is None:
            raise PeerError("over the limit")
        clock.step(1.0)

    steady = Prepared(lambda: clock.step(1.0), lambda: ())
    turns = timing.take_turns({"frail": Prepared(frail, lambda: ()), "steady": steady}, 0, clock, lambda s: None)
    assert turns["frail"].why == "over the limit"
    assert len(turns["frail"].samples) == 3
    assert len(turns["steady"].samples) == timing.MIN_ROUNDS


HELPER = """
import json, sys, time
for line in sys.stdin.buffer:
    message = json.loads(line)
    body = [sys.stdin.buffer.read(4 * a["shape"][0]) for a in message["arrays"]]
    if message["command"] == "hang":
        time.sleep(60)
    if message["command"] == "die":
        sys.exit(3)
    listed = [{"dtype": "float32", "shape": [len(b) // 4]} for b in body]
    if message["command"] == "refuse":
        listed, body = [], []
    extra = {"unsupported": "no such op"} if message["command"] == "refuse" else {"seconds": 1.5}
    sys.stdout.buffer.write(json.dumps({**extra, "arrays": listed}).encode() + b"\\n" + b"".join(body))
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    script = tmp_path / "helper.py"
    script.write_text(HELPER)
    made = Helper("echo", [sys.executable, str(script)], {})
    made.deadline = time.monotonic() + 60
    yield made
    made.close()


def test_helper_sends_arrays_there_and_back(helper: Helper) -> None:
    sent = np.arange(100_000, dtype=np.float32)
    reply, received = helper.ask({"command": "echo"}, {"x": sent, "y": sent[:3]})
    assert [a.tolist() for a in received] == [sent.tolist(), [0.0, 1.0, 2.0]]
    assert helper.time(1) == reply["seconds"] == 1.5


def test_helper_that_dies_or_hangs_is_replaced(helper: Helper) -> None:
    with pytest.raises(PeerError, match="echo crashed"):
        helper.ask({"command": "die"})
    helper.deadline = 0.0
    with pytest.raises(PeerError, match="over the limit"):
        helper.ask({"command": "hang"})
    helper.deadline = time.monotonic() + 60
    assert helper.time(1) == 1.5
    with pytest.raises(UnsupportedError, match="no such op"):
        helper.ask({"command": "refuse"})
