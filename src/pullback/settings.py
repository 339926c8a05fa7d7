"""How many threads the ops use, how exact they are, and the memory and disk space they keep.

Imports nothing heavy, so that `import pullback` stays quick.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pullback.cores import found_cores
from pullback.shown import shown

THREADS_VARIABLE = "PULLBACK_NUM_THREADS"
MOST_THREADS = 1024
PRECISION_VARIABLE = "PULLBACK_PRECISION"
QUIET_VARIABLE = "PULLBACK_QUIET"  # silences what is said on stderr: compilations, hints
PRECISIONS = ("fast", "exact")
UNUSED_DAYS = 30  # after which the compiled kernels of another version or machine may go

Blocks = tuple[tuple[str, Any], ...]
_block_settings: dict[str, ContextVar[Any]] = {}


def block_setting(name: str) -> ContextVar[Any]:
    """A setting of `with` blocks, None outside of them."""
    return _block_settings.setdefault(name, ContextVar(name, default=None))


def blocks_in_force() -> Blocks:
    """What the `with` blocks around this call have set, as plain values, for `under` in another thread or at a later time."""
    return tuple((name, setting.get()) for name, setting in _block_settings.items() if setting.get() is not None)


@contextmanager
def during(setting: ContextVar[Any], value: Any) -> Iterator[None]:
    """Inside the block a setting has this value.

    What it was is read before it is changed: a signal handler's exception may come as soon as it is, and with it the end.
    """
    before = setting.get()
    try:
        setting.set(value)
        yield
    finally:
        setting.set(before)


@contextmanager
def under(blocks: Blocks) -> Iterator[None]:
    """Work as inside those `with` blocks."""
    settings, values = [_block_settings[name] for name, _ in blocks], [value for _, value in blocks]
    before = [setting.get() for setting in settings]
    try:
        list(map(ContextVar.set, settings, values))
        yield
    finally:
        list(map(ContextVar.set, settings, before))  # in one step of the interpreter: no exception comes between two of them


_default: int | None = None
_inside: ContextVar[int | None] = block_setting("pullback_threads")
_precision: ContextVar[str | None] = block_setting("pullback_precision")


@cache
def environment(name: str) -> str:
    """A variable of the environment, "" where it is not set: read once, since asking costs as much as a small op."""
    return os.environ.get(name, "")


def cores() -> int:
    """Cores that this process had when it was first asked: of its affinity mask, within the quota of its container.

    A mask or quota that is changed later does not change the number: see set_num_threads.
    """
    return found_cores().threads


def _checked(who: str, n: Any) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        count = None
    if count is None or isinstance(n, bool):
        raise TypeError(f"{who}: the number of threads must be an integer, not {shown(n)}")
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(f"{who}: the number of threads is {count}; it must be from 1 to {MOST_THREADS}")
    return count


def set_num_threads(n: int) -> None:
    """Use this many threads from now on, wherever no `with threads(...)` says otherwise.

    Without it they are as many as the cores that the process might use at its first op, whatever becomes of its affinity mask.
    """
    global _default
    _default = _checked("set_num_threads", n)


def get_num_threads() -> int:
    """Threads in force: `with threads(n)`, set_num_threads, $PULLBACK_NUM_THREADS, else the cores at the first op."""
    chosen = _inside.get() or _default
    if chosen is not None:
        return chosen
    asked = environment(THREADS_VARIABLE)
    if not asked:
        return cores()
    try:
        count = int(asked)
    except ValueError:
        raise ValueError(f"{THREADS_VARIABLE} is {asked!r}; it must be a whole number from 1 to {MOST_THREADS}") from None
    return _checked(THREADS_VARIABLE, count)


def threads(n: int) -> AbstractContextManager[None]:
    """Use n threads inside the block. A Python thread started inside it begins with the default again."""
    return during(_inside, _checked("threads", n))


def _checked_precision(who: str, name: Any) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"{who}: unknown precision {name!r}; there are {', '.join(PRECISIONS)}")
    return str(name)


def current_precision() -> str:
    """The precision in force: that of the innermost `with precision(...)`, $PULLBACK_PRECISION, else "fast"."""
    chosen = _precision.get()
    if chosen is not None:
        return chosen
    asked = environment(PRECISION_VARIABLE)
    return _checked_precision(PRECISION_VARIABLE, asked) if asked else PRECISIONS[0]


def precision(name: str) -> AbstractContextManager[None]:
    """Inside the block, "exact" uses no kernel that errs by more than the rounding of a plain sum (Winograd); "fast" may."""
    return during(_precision, _checked_precision("precision", name))


def what_is_set() -> tuple[int | None, str | None]:
    """Threads and precision as set in this program, None where they are not: for keys of what depends on them."""
    return _inside.get() or _default, _precision.get()


def release_memory() -> int:
    """Give back to the system what is kept for future calls; how many bytes it was.

    That is the memory of results, at most 256 MiB, working memory (of each thread a few MiB, of calls as much as the largest has
    asked for), and the tables of plans, 64 MiB.
    """
    from pullback.cpu.engine import memory, plan_cache, threads

    released = memory.release_memory() + threads.release_scratch() + plan_cache.release_plans()
    memory.trim()
    return released
