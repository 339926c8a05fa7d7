"""The cpu engine across processes: forks, the end of a process, affinity, signals, and what an import and a first call cost."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from cpu_calls import run_python

import pullback as pb
from pullback.cpu.machine_code import find, warmup

# Shared by the scripts below: an answer of the pool (5 threads, many pieces) held against the one computed beforehand.
PREPARE = """
import os, sys, threading, time
import numpy as np
import pullback as pb
from pullback.cpu.engine import threads
x = np.random.default_rng(0).standard_normal((4, 24, 61, 67)).astype(np.float32)
options = {"stride": 1, "layout": "channels_first"}
dy = np.ones((4, 24, 59, 66), np.float32)
with pb.backend("reference"):
    y, dx = pb.max_pool(x, (3, 2), **options), pb.max_pool_grad(dy, x, (3, 2), **options)

def check(count=5):
    with pb.backend("cpu"), pb.threads(count):
        assert np.array_equal(pb.max_pool(x, (3, 2), **options), y)
        assert np.array_equal(pb.max_pool_grad(dy, x, (3, 2), **options), dx)

def child_of_fork(work=check):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
# Python 3.12 warns that forking a process with threads may deadlock; that ours does not is what these tests are about.
QUIET = "ignore::DeprecationWarning"


@needs_fork
def test_fork_before_and_after_the_pool_is_used() -> None:
    code = """
child_of_fork()
assert not threads._state
check()
child_of_fork()
child_of_fork(lambda: (check(), child_of_fork()))
check()
"""
    run_python(PREPARE + code, warnings=QUIET)


@needs_fork
def test_fork_while_other_threads_use_the_pool() -> None:
    code = """
stop = False
def busy():
    while not stop:
        check(3)
callers = [threading.Thread(target=busy) for _ in range(2)]
check()
for caller in callers:
    caller.start()
for _ in range(20):
    child_of_fork()
stop = True
for caller in callers:
    caller.join()
"""
    run_python(PREPARE + code, warnings=QUIET)


@needs_fork
def test_fork_while_another_thread_compiles(tmp_path) -> None:
    """The child needs kernels too, and Numba's lock must not have been copied locked."""
    code = """
started = threading.Event()
def compile_two():
    started.set()
    with pb.backend("cpu"):
        pb.avg_pool(x, (3, 2), **options)
        pb.avg_pool_grad(dy, x.shape, (3, 2), **options)
compiling = threading.Thread(target=compile_two)
compiling.start()
started.wait()
time.sleep(1.0)
child_of_fork(compile_two)
compiling.join()
"""
    run_python(PREPARE + code, warnings=QUIET, PULLBACK_CACHE_DIR=str(tmp_path))


@needs_fork
def test_multiprocessing_with_forked_children() -> None:
    code = """
import multiprocessing
context = multiprocessing.get_context("fork")
for _ in range(2):
    with context.Pool(3) as children:
        children.map(check, [1, 2, 3, 4, 5, 6], chunksize=1)
    check()
"""
    run_python(PREPARE + code, warnings=QUIET)


@pytest.mark.parametrize("pause", ["", "time.sleep(0.2)"], ids=["spinning", "asleep"])
def test_exit_with_idle_workers(pause: str) -> None:
    run_python(PREPARE + f"check()\n{pause}\n", timeout=60)


def test_exit_while_a_daemon_thread_computes() -> None:
    code = """
def forever():
    while True:
        check(3)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""
    run_python(PREPARE + code, timeout=60)


def test_a_call_after_the_pool_has_stopped_at_exit() -> None:
    """Exit functions run in reverse order: this one was registered before the pool's."""
    code = "import atexit\natexit.register(lambda: (check(), print('checked')))\n" + PREPARE + "check()\n"
    assert run_python(code, timeout=60) == "checked"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_affinity_is_respected() -> None:
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import pullback as pb
assert pb.get_num_threads() == 1, pb.get_num_threads()
"""
    run_python(code + PREPARE + "check(pb.get_num_threads())\nassert not threads._state", PULLBACK_NUM_THREADS="")


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: {0})(0)) < 2, reason="needs two CPUs and affinity masks")
def test_workers_follow_the_callers_affinity() -> None:
    """Pinned, let go, pinned elsewhere: a worker may run where its caller may, and stays off its CPU where there is another."""
    code = """
everywhere = sorted(os.sched_getaffinity(0))
for allowed in ({everywhere[0]}, set(everywhere), {everywhere[-1]}, set(everywhere[:2]), set(everywhere)):
    os.sched_setaffinity(0, allowed)
    time.sleep(0.02)  # the mask is looked at again when a coarse clock has ticked
    check(3)
    caller = int(threads.pool()._masks[threads.CALLER_CPU])
    assert caller in allowed
    for worker in threads.pool().workers:
        found = os.sched_getaffinity(worker.native_id)
        assert found == (allowed - {caller} or allowed), (allowed, caller, found)
assert len(threads.pool().workers) == 2
"""
    run_python(PREPARE + code)


def test_the_environment_variable_sets_the_threads() -> None:
    code = """
assert pb.get_num_threads() == 3
with pb.backend("cpu"):
    assert np.array_equal(pb.max_pool(x, (3, 2), **options), y)
assert len(threads.pool().workers) == 2
"""
    run_python(PREPARE + code, PULLBACK_NUM_THREADS="3")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no interval timers")
@pytest.mark.parametrize("ending", ["check(2)", "raise Interrupted"], ids=["nested", "interrupted"])
def test_signal_handlers_in_the_middle_of_jobs(ending: str) -> None:
    """A handler may call an op itself, or leave the one under way by an exception: the next answers are right all the same."""
    code = f"""
import signal, sys
class Interrupted(BaseException): pass  # as KeyboardInterrupt is: np.array_equal answers False to an Exception inside it
report = sys.unraisablehook
# One that meets a finaliser is reported by the interpreter and goes no further.
sys.unraisablehook = lambda unraisable: None if unraisable.exc_type is Interrupted else report(unraisable)
signals = 0
def handle(number, frame):
    global signals
    signals += 1
    {ending}
check()
signal.signal(signal.SIGALRM, handle)
rng = np.random.default_rng(0)
for delay in rng.uniform(1e-5, 5e-3, 100):
    before = signals
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)  # once: a handler slower than the next signal would nest without end
        while signals == before:  # not: while the timer runs, for the handler may come a little after it has run out
            check()
    except Interrupted:
        pass
check()
assert signals == 100, signals
"""
    run_python(PREPARE + code)


def test_importing_loads_no_compiler() -> None:
    code = "import sys, pullback\nprint([name for name in ('numba', 'llvmlite') if name in sys.modules])"
    assert run_python(code) == "[]"


FIRST_CALL = """
import sys, time
import numpy as np
import pullback as pb
x = np.zeros((2, 32, 32, 32), np.float32)
start = time.perf_counter()
with pb.backend("cpu"), pb.threads(2):
    pb.max_pool_grad(pb.max_pool(x, 2), x, 2)
seconds = time.perf_counter() - start
from pullback.cpu.machine_code import compiler
assert "numba" not in sys.modules
assert compiler.compilations == 0
print(seconds)
"""


def test_a_first_call_from_a_warm_cache_needs_no_numba() -> None:
    for variant in warmup.POOL:
        find.code(variant)
    x = np.zeros((2, 32, 32, 32), np.float32)
    with pb.backend("cpu"):
        pb.max_pool_grad(pb.max_pool(x, 2), x, 2)
    assert float(run_python(FIRST_CALL)) > 0


def test_an_import_loads_nothing_heavy() -> None:
    """Importing takes about as long as NumPy: what is large comes with the first call that needs it."""
    code = "import sys, pullback\nprint(*{name.partition('.')[0] for name in sys.modules})"
    heavy = {"numba", "llvmlite", "autograd", "torch", "jax", "onnx", "rich", "matplotlib", "multiprocessing", "asyncio"}
    assert not heavy & set(run_python(code).split())
