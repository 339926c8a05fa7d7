"""Plans kept for later calls: bounded by the bytes of all kernels together, least recently used first, released on request."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.engine import plan_cache
from pullback.cpu.engine.plan_cache import kept_bytes, planned

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Room for 8 MiB, and nothing kept of other tests."""
    plan_cache.release_plans()
    monkeypatch.setattr(plan_cache, "MOST_BYTES", 8 * MIB)
    monkeypatch.setattr(plan_cache, "_empty_caches", list(plan_cache._empty_caches))
    yield
    plan_cache.release_plans()


@dataclass(frozen=True)
class Tables:
    several: tuple[np.ndarray, ...]
    what: str = "a plan"


class Maker:
    """A planned function of its own; `made` is what it was really asked to make."""

    def __init__(self) -> None:
        self.made: list[int] = []

        @planned
        def plan(number: int, size: int = MIB) -> Tables:
            self.made.append(number)
            return Tables((np.full(size - 1024, number % 256, np.uint8), np.zeros(1024, np.uint8)))

        self.plan = plan


def test_plans_are_made_once() -> None:
    maker = Maker()
    assert maker.plan(1) is maker.plan(1)
    assert maker.plan(1, size=4096) is maker.plan(1, size=4096)
    assert maker.made == [1, 1]
    assert kept_bytes() == MIB + 4096


def test_bytes_are_bounded_over_all_functions() -> None:
    makers = [Maker() for _ in range(3)]
    for number in range(40):
        for maker in makers:
            assert maker.plan(number).several[0][0] == number
            assert kept_bytes() <= 8 * MIB
    assert kept_bytes() == 8 * MIB
    gc.collect()
    held = [found for found in gc.get_objects() if isinstance(found, Tables)]
    assert len(held) == 8, "somebody else holds on to plans"


def test_what_is_used_stays() -> None:
    maker, once = Maker(), Maker()
    for number in range(100):
        maker.plan(-1)
        maker.plan(-2)
        once.plan(number)
    assert maker.made == [-1, -2]
    assert len(once.made) == 100


def test_more_than_fits_is_made_again_and_right() -> None:
    maker = Maker()
    for _ in range(3):
        for number in range(12):
            assert (maker.plan(number).several[0] == number).all()
    assert len(maker.made) > 12
    assert kept_bytes() <= 8 * MIB


def test_one_that_is_larger_than_all_is_kept_alone() -> None:
    maker = Maker()
    maker.plan(1)
    assert maker.plan(2, size=20 * MIB) is maker.plan(2, size=20 * MIB)
    assert kept_bytes() == 20 * MIB
    maker.plan(3)
    assert kept_bytes() == MIB
    assert maker.made == [1, 2, 3]


def test_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 10)
    maker = Maker()
    for number in range(50):
        maker.plan(number, size=2048)
    assert len(plan_cache._recent) + len(plan_cache._older) == 10
    assert maker.plan.cache_info().currsize <= 10  # type: ignore[attr-defined]


def test_release_memory_lets_go_of_all() -> None:
    maker = Maker()
    tables = [weakref.ref(maker.plan(number).several[0]) for number in range(5)]
    assert pb.release_memory() >= 5 * MIB
    assert kept_bytes() == 0
    assert [table() for table in tables] == [None] * 5
    maker.plan(1)
    assert maker.made == [0, 1, 2, 3, 4, 1]


def test_one_function_can_be_emptied_alone() -> None:
    one, other = Maker(), Maker()
    one.plan(1), other.plan(1)
    one.plan.cache_clear()  # type: ignore[attr-defined]
    assert kept_bytes() == MIB
    one.plan(1), other.plan(1)
    assert (one.made, other.made) == ([1, 1], [1])


def test_views_count_with_the_memory_they_hold() -> None:
    @planned
    def plan(number: int) -> tuple[Any, ...]:
        table = np.zeros(MIB, np.uint8)
        return table[:10], [table[10:20]], number

    plan(1)
    assert kept_bytes() == MIB


def test_exceptions_are_not_kept() -> None:
    asked = []

    @planned
    def plan(number: int) -> int:
        asked.append(number)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return number

    with pytest.raises(KeyboardInterrupt):
        plan(3)
    assert plan(3) == 3


def test_many_threads() -> None:
    makers = [Maker() for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for number in chance.integers(0, 12, 1000):
            plan = makers[int(number) % 4].plan(int(number))
            assert plan.several[0][0] == number
            if number == 7:
                plan_cache.release_plans()

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)
    for number in range(20):  # what two threads made at once goes with the next round
        makers[0].plan(number)
    gc.collect()
    assert kept_bytes() <= 8 * MIB
    held = [found for found in gc.get_objects() if isinstance(found, Tables)]
    assert sum(table.nbytes for plan in held for table in plan.several) <= 9 * MIB


def test_every_plan_of_the_backend_is_counted() -> None:
    """Long axes have long tables; one kernel after another stays under the bound, and all of it can be released."""
    with pb.backend("cpu"):
        for size in range(100_000, 106_000, 1000):
            x = np.zeros((1, size, 2), np.float32)
            y = pb.max_pool(x, 3)
            pb.max_pool_grad(y, x, 3)
            pb.avg_pool_grad(y, x.shape, 3)
            pb.conv(x, np.zeros((3, 1, 2), np.float32), groups=2)
            assert 0 < kept_bytes() <= 8 * MIB
    assert pb.release_memory() > 0
    assert kept_bytes() == 0


def test_no_plan_has_a_cache_of_its_own() -> None:
    """All that make plans share the bound: functools' caches are for what is small and few, and for the parts of kernels."""
    pb.backends()
    plain = {
        f"{name}.{key}"
        for name, module in sys.modules.items()
        if name.startswith("pullback.cpu.") and not name.startswith("pullback.cpu.simd.") and not name.endswith("_kernel")
        for key, value in vars(module).items()
        if hasattr(value, "cache_clear") and "cache_clear" not in vars(value)  # `planned` gives each its own
        if value.__module__ == name
    }
    few = {"dense", "filter_order", "machine", "recycling", "roofs", "system", "threads", "plan_cache"}
    assert {name for name in plain if name.split(".")[2] != "machine_code" and name.split(".")[3] not in few} == set()


class Slow:
    """A key whose comparison lets other threads run, as that of a problem may."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        time.sleep(0)
        return self.number

    def __eq__(self, other: object) -> bool:
        time.sleep(0)
        return isinstance(other, Slow) and other.number == self.number


def test_threads_that_make_count_and_release_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 20)
    monkeypatch.setattr(plan_cache, "_empty_caches", list(plan_cache._empty_caches))
    make = plan_cache.planned(lambda key: np.zeros(key.number + 1))
    errors, end = [], time.monotonic() + 1.0

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed)
        try:
            while time.monotonic() < end:
                number = int(numbers.integers(60))
                assert len(make(Slow(number))) == number + 1
                plan_cache.kept_bytes() if number else plan_cache.release_plans()
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
