"""A minute of everything at once: callers, forks, changing shapes and thread counts; every answer is compared. Run by hand."""

from __future__ import annotations

import os

import pytest
from cpu_calls import run_python

SOAK = """
import os, random, sys, threading, time
import numpy as np
import pullback as pb
from cpu_calls import LAYOUTS, assert_close, pool_calls, reals, shaped
from pullback.cpu.engine import threads

END = time.monotonic() + float(sys.argv[1])
answers = forks = 0

def problems(seed):
    chance = random.Random(seed)
    for number in range(12):
        layout = LAYOUTS[number % 2]
        sizes = [chance.randint(1, 3), chance.randint(1, 40), chance.randint(4, 70), chance.randint(4, 70)]
        x = reals(shaped(layout, *sizes), seed=number)
        window = (chance.randint(1, 4), chance.randint(1, 4))
        calls = pool_calls(x, window, stride=chance.randint(1, 3), padding="same", layout=layout)
        with pb.backend("reference"):
            for call in calls.values():
                yield call, call()

def caller(seed):
    global answers
    chance, made = random.Random(seed), list(problems(seed))
    while time.monotonic() < END:
        call, expected = chance.choice(made)
        with pb.backend("cpu"), pb.threads(chance.randint(1, 6)):
            assert_close(call(), expected)
        answers += 1
        if chance.random() < 0.01:
            time.sleep(0.005)  # the workers fall asleep now and then

failures = []
def guarded(seed):
    try:
        caller(seed)
    except BaseException as error:
        failures.append(repr(error))

callers = [threading.Thread(target=guarded, args=(seed,)) for seed in range(6)]
own = list(problems(99))
for thread in callers:
    thread.start()
while time.monotonic() < END and not failures:
    pid = os.fork()
    if pid == 0:
        try:
            for call, expected in own[:: 1 + forks % 7]:
                with pb.backend("cpu"), pb.threads(3):
                    assert_close(call(), expected)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        failures.append("a forked child failed")
    forks += 1
    if forks % 10 == 0:
        threads.pool().stop()  # others go on alone
        threads._state.clear()
for thread in callers:
    thread.join(60)
assert not failures, failures
assert not any(thread.is_alive() for thread in callers)
assert answers > 500 and forks > 5, (answers, forks)
print(answers, forks)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_minute_of_everything() -> None:
    run_python(SOAK, "60", timeout=240, warnings="ignore::DeprecationWarning")
