"""Exceptions of signal handlers, Ctrl-C above all, at any moment: right answers afterwards, on all threads, and nothing is lost."""

from __future__ import annotations

import sys

import pytest
from cpu_calls import run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C there")

# Shared by the scripts below: calls whose answers are known, and whether the workers still work.
PREPARE = """
import gc, os, random, signal, subprocess, sys, threading, time
import numpy as np
import pullback as pb
from pullback.cpu.engine import memory
from pullback.cpu.engine import threads
from pullback.settings import current_precision

lost = []  # exceptions that ended in a finaliser
sys.unraisablehook = lambda unraisable: lost.append((unraisable.exc_type, unraisable.object))
rng = np.random.default_rng(0)

def whole(*shape):
    return rng.integers(-3, 4, shape).astype(np.float32)

def calls(batch, size, channels):
    x, f = whole(batch, size, size, channels), whole(3, 3, channels, channels)
    dy = whole(batch, size, size, channels)
    half = whole(batch, size // 2, size // 2, channels)
    return [
        lambda: pb.conv(x, f, padding=1),
        lambda: pb.conv_grad_input(dy, f, x.shape, padding=1),
        lambda: pb.conv_grad_filter(dy, x, f.shape, padding=1),
        lambda: pb.max_pool(x, 2),
        lambda: pb.max_pool_grad(half, x, 2),
        lambda: pb.avg_pool_grad(half, x.shape, 2),
    ]

def known(*made):
    with pb.backend("reference"):
        return [(call, call()) for call in made]

def check(call, expected, count=3):
    with pb.backend("cpu"), pb.precision("exact"), pb.threads(count):
        assert np.array_equal(call(), expected)

def all_workers_work(count=3):
    # Their own clocks say so, within a few tries: the system may give their cores to others.
    workers = threads.pool().workers
    call, expected = known(lambda: pb.max_pool(np.ones((8, 96, 96, 64), np.float32), 3, stride=1))[0]
    before = [time.clock_gettime(time.pthread_getcpuclockid(worker.ident)) for worker in workers]
    for _ in range(50):
        check(call, expected, count)
        after = [time.clock_gettime(time.pthread_getcpuclockid(worker.ident)) for worker in workers]
        if len(workers) == count - 1 and all(b > a + 1e-3 for a, b in zip(before, after)):
            break
    else:
        raise AssertionError(f"idle workers: {before} {after}")
    alive = [thread for thread in threading.enumerate() if thread.name.startswith("pullback-")]
    assert len(alive) == count - 1, alive

def lent():
    from pullback.cpu.engine import recycling_kernel
    gc.collect()
    return int(memory._shelf().words[recycling_kernel.LENT])
"""

# An exception in every place of the library's Python code in turn where the interpreter handles signals: when a function begins or
# goes on, behind every call, and when a loop goes back.
EVERY_STEP = """
import dis, functools

class Interrupted(BaseException):
    pass

@functools.cache
def steps_of(code):
    found, last = set(), ""
    if os.sep + "pullback" + os.sep in code.co_filename:
        for instruction in dis.get_instructions(code):
            name = instruction.opname
            called = last.startswith("CALL") and not last.startswith("CALL_INTRINSIC")
            if name == "RESUME" or name.startswith("JUMP_BACKWARD") or called:
                found.add(instruction.offset)
            last = name
    return found

def count_down(code, offset):
    global left
    if offset in steps_of(code) and threading.current_thread() is threading.main_thread():
        left -= 1
        if left == 0:
            raise Interrupted

def trace(frame, event, argument):
    if not steps_of(frame.f_code):
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        count_down(frame.f_code, frame.f_lasti)
    return trace

if sys.version_info >= (3, 12):  # where a trace function that has raised does not see all steps the next time
    monitoring, tool = sys.monitoring, sys.monitoring.DEBUGGER_ID
    monitoring.use_tool_id(tool, "steps")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, count_down)

    def watch(on):
        monitoring.set_events(tool, monitoring.events.INSTRUCTION if on else 0)
else:
    def watch(on):
        sys.settrace(trace if on else None)

def interrupt(work, step):
    # Whether the work took so many steps.
    global left
    left = step
    watch(True)
    try:
        work()
    except Interrupted:
        return True
    finally:
        watch(False)
    return False

def at_every_step(work, afterwards):
    step = 1
    while interrupt(work, step):
        afterwards()
        step += 1
    return step
"""

A_CALL = """
made = known(*calls(2, 24, 32)[::2])
for call, expected in made:
    check(call, expected)
nothing = lent()

def work():
    for call, expected in made:
        with pb.backend("cpu"), pb.precision("exact"), pb.threads(3):
            call()

def afterwards():
    check(*made[0])
    assert pb.get_num_threads() == count and current_precision() == "fast"

count = pb.get_num_threads()
steps = at_every_step(work, afterwards)
assert steps > 200, steps
assert not lost, lost
assert lent() == nothing
all_workers_work()
"""

STARTING = """
made = known(lambda: pb.max_pool(np.ones((8, 64, 64, 32), np.float32), 2))
check(*made[0])

def start():
    with pb.backend("cpu"), pb.threads(3):
        made[0][0]()

def again():
    check(*made[0])
    assert len(threads.pool().workers) == 2
    threads.pool().stop()
    assert not alive()
    threads._state.clear()

def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("pullback-")]

def stop():
    threads.pool().stop()

def once_more():
    threads.pool().stop()
    assert not alive()
    threads._state.clear()
    check(*made[0])

again()
assert at_every_step(start, again) > 50
again()
check(*made[0])
assert at_every_step(stop, once_more) > 5
assert not lost, lost
once_more()
all_workers_work()
"""

CTRL_C = """
SEND = "import os, sys, time\\nfor line in sys.stdin:\\n    time.sleep(float(line))\\n    os.kill(int(sys.argv[1]), 2)"
made = [pair for shape in ((1, 8, 8), (2, 24, 32), (4, 32, 64)) for pair in known(*calls(*shape))]
for pair in made:
    check(*pair)
nothing, chance, caught, count = lent(), random.Random(0), 0, pb.get_num_threads()
sender = subprocess.Popen([sys.executable, "-c", SEND, str(os.getpid())], stdin=subprocess.PIPE, text=True, bufsize=1)
signal.signal(signal.SIGINT, signal.default_int_handler)

def call_on():  # a function: in Python 3.12 and 3.13 the end of a loop that stands within try lies outside of it
    while not lost:
        call, _ = chance.choice(made)
        with pb.backend("cpu"), pb.precision("exact"), pb.threads(chance.choice((1, 3, 3))):
            held = [call(), call()]
        del held

for _ in range(int(sys.argv[1])):
    try:
        sender.stdin.write(f"{chance.uniform(0, 2e-3)}\\n")
        call_on()
    except KeyboardInterrupt:
        caught += 1
    assert not lost, lost
    assert pb.get_num_threads() == count and current_precision() == "fast"
    check(*chance.choice(made))
assert caught == int(sys.argv[1])
sender.stdin.close()
sender.wait()
assert lent() == nothing
all_workers_work()
"""


def test_an_exception_between_any_two_steps_of_a_call() -> None:
    run_python(PREPARE + EVERY_STEP + A_CALL, timeout=300)


def test_an_exception_between_any_two_steps_of_starting_workers() -> None:
    run_python(PREPARE + EVERY_STEP + STARTING, timeout=300)


@pytest.mark.parametrize("times", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_ctrl_c(times: int) -> None:
    run_python(PREPARE + CTRL_C, str(times), timeout=300 + times / 10)


# While everything is imported and loaded for the first call.
FIRST_CALL = """
import signal, sys, warnings
warnings.simplefilter("ignore", ResourceWarning)  # Python's own import leaves a file open where it is interrupted
import numpy as np
import pullback as pb

class Interrupted(Exception):
    pass

def handle(number, frame):
    raise Interrupted

signal.signal(signal.SIGALRM, handle)
x = np.ones((1, 8, 8, 16), np.float32)
for _ in range(3):
    try:
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
        pb.avg_pool(x, 2)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sum(())  # a call, after which a handler that is due has run
    except Interrupted:
        pass
with pb.kernel("channels"):
    assert (pb.avg_pool(x, 2) == 1).all()
assert pb.explain("conv", x, np.ones((3, 3, 16, 16), np.float32)).chosen.backend == "cpu"
"""


@pytest.mark.parametrize("seconds", ["0.003", "0.02", "0.06", "0.2"])
def test_a_first_call_that_is_interrupted_is_begun_again(seconds: str) -> None:
    run_python(FIRST_CALL, seconds)
