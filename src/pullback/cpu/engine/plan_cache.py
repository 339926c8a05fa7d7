"""Plans kept for the next call of the same problem: by bytes over all kernels together, least recently used goes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from pullback.cpu.engine.threads import fed_threads

P = ParamSpec("P")
T = TypeVar("T")

MOST_BYTES = 64 << 20  # of tables; a plan that is larger still is kept alone
MOST_PLANS = 4096

# Who asks finds a plan in a cache of its function's own, which takes no time but knows nothing of use, bytes or other functions.
# So plans go round: those asked for since the last round are `_recent`, the others `_older`, and of these the oldest is let go of
# first. A round begins when the recent ones are half of what may be kept; it empties the functions' caches, so that what is asked
# for again is seen. There is no lock, which a signal handler's exception could leave locked: what two threads do at once costs a
# plan that is made again. Plain dicts, whose values() and items() as a list are one step for other threads; those of an OrderedDict
# look up each key, in Python.
_recent: dict[Any, tuple[Any, int]] = {}
_recent_bytes = 0
_older: dict[Any, tuple[Any, int]] = {}
_empty_caches: list[Callable[[], None]] = []


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The arrays that own the memory of a plan's tables."""
    if isinstance(value, np.ndarray):
        yield value.base if isinstance(value.base, np.ndarray) else value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _arrays(getattr(value, field.name))


def _bytes_of(plan: Any) -> int:
    return sum({id(array): array.nbytes for array in _arrays(plan)}.values())


def kept_bytes() -> int:
    """Bytes of the tables of all plans that are kept."""
    return sum(size for _, size in list(_recent.values()) + list(_older.values()))


def _begin_round() -> None:
    global _recent, _recent_bytes
    for empty in _empty_caches:
        empty()
    plans, _recent, _recent_bytes = _recent, {}, 0
    _older.update(list(plans.items()))


def _make_room(size: int) -> None:
    """Let go of plans until there is room for one of so many bytes."""
    total, count = kept_bytes() + size, len(_recent) + len(_older) + 1
    while count > 1 and (total > MOST_BYTES or count > MOST_PLANS):
        if not _older:
            _begin_round()
        try:
            total -= _older.pop(next(iter(_older)))[1]
        except (KeyError, RuntimeError, StopIteration):  # another thread has let go of them
            return
        count -= 1


def _find(make: Callable[..., T], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> T:
    global _recent_bytes
    key = (make, arguments, *keywords.items())
    found = _recent.get(key)
    if found is None:
        found = _older.pop(key, None)
        if found is None:
            plan = make(*arguments, **keywords)
            found = plan, _bytes_of(plan)
            _make_room(found[1])
        if _recent_bytes + found[1] > MOST_BYTES // 2 or len(_recent) >= MOST_PLANS // 2:
            _begin_round()
        _recent[key] = found
        _recent_bytes += found[1]
    return cast(T, found[0])


def planned(make: Callable[P, T]) -> Callable[P, T]:
    """Keep what a function gives for hashable arguments: a plan, or something as small that many plans are made from.

    As with functools.lru_cache, `cache_clear` forgets them and `cache_info` says how many were found.
    """

    @cache
    @wraps(make)
    def find(*arguments: P.args, **keywords: P.kwargs) -> T:
        return _find(make, arguments, keywords)

    empty = find.cache_clear

    def forget() -> None:
        for plans in (_recent, _older):
            for key in [key for key in tuple(plans) if key[0] is make]:
                plans.pop(key, None)
        empty()

    _empty_caches.append(empty)
    find.cache_clear = forget  # type: ignore[method-assign]
    return cast(Callable[P, T], find)


def planned_for_threads(make: Callable[Concatenate[int, P], T]) -> Callable[P, T]:
    """The same for a function that is also told how many threads to feed: its cut may change the order of work, never a sum."""
    find = planned(make)

    @wraps(make)
    def find_for_threads(*arguments: P.args, **keywords: P.kwargs) -> T:
        return find(fed_threads(), *arguments, **keywords)

    for name in ("cache_clear", "cache_info"):
        setattr(find_for_threads, name, getattr(find, name))
    return find_for_threads


def release_plans() -> int:
    """Let go of all plans; how many bytes their tables had."""
    released = kept_bytes()
    _begin_round()
    _older.clear()
    return released
