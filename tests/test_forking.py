"""Locks that a fork waits for: free in the child whoever held them, and whoever else forks."""

from __future__ import annotations

import os

import pytest
from cpu_calls import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

HELD = """
import os, threading, time
from pullback.forking import LOADING, REGISTRY, lock_free_in_children
locks = [lock_free_in_children(level) for level in (LOADING, REGISTRY)]
holding = threading.Event()
def hold():
    with locks[1], locks[0]:
        holding.set()
        time.sleep(0.2)
threading.Thread(target=hold).start()
holding.wait()
pid = os.fork()
if pid == 0:
    os._exit(0 if all(lock.acquire(timeout=5) for lock in locks) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

# Packages that are imported under `loading` ask for loggers, and `logging` has a lock that forks take as well.
LOGGER = """
import os, threading, time
from pullback.forking import LOADING, lock_free_in_children
import logging
lock, holding = lock_free_in_children(LOADING), threading.Event()
def hold():
    with lock:
        holding.set()
        time.sleep(0.2)
        logging.getLogger("one more")
threading.Thread(target=hold, daemon=True).start()
holding.wait()
pid = os.fork()
if pid == 0:
    os._exit(0 if lock.acquire(timeout=5) and logging.getLogger("another") else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

SEVERAL = """
import os, sys, threading
from pullback.forking import LOADING, lock_free_in_children
lock = lock_free_in_children(LOADING)
sys.setswitchinterval(1e-6)
def fork():
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if lock.acquire(timeout=5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        done.append(pid)
done = []
threads = [threading.Thread(target=fork, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert len(done) == 400, len(done)
"""


def test_a_fork_waits_for_who_holds_a_lock() -> None:
    run_python(HELD, warnings="ignore::DeprecationWarning")


def test_several_threads_fork() -> None:
    run_python(SEVERAL, warnings="ignore::DeprecationWarning")


def test_a_fork_takes_our_locks_before_that_of_logging() -> None:
    run_python(LOGGER, warnings="ignore::DeprecationWarning", timeout=30)


# A signal whose handler raises in the middle of a fork: the locks are free afterwards for other threads.
INTERRUPTED = """
import os, signal, sys, threading
from pullback.forking import FRONT_END, LOADING, REGISTRY, lock_free_in_children
locks = [lock_free_in_children(level) for level in (FRONT_END, REGISTRY, LOADING)]
class Interrupted(Exception): pass
sys.unraisablehook = lambda unraisable: None  # an exception in a hook of a fork goes no further
handled = 0
def handle(number, frame):
    global handled
    handled += 1
    raise Interrupted
signal.signal(signal.SIGALRM, handle)
free = []
def take_all():
    free.append(all(lock.acquire(timeout=5) for lock in locks))
    for lock in locks:
        lock.release()
parent = os.getpid()
for number in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + number * 1e-5)
        while handled == number:  # not: while the timer runs, for the handler may come a little after it has run out
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    except Interrupted:
        if os.getpid() != parent:
            os._exit(0)
other = threading.Thread(target=take_all)
other.start()
other.join()
assert free == [True]
"""


def test_a_fork_that_is_interrupted_leaves_no_lock_taken() -> None:
    run_python(INTERRUPTED, warnings="ignore::DeprecationWarning")
