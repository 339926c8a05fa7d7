"""Memory of results: aligned, recycled when the last view is gone, bounded, released on request."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from cpu_calls import run_python

import pullback as pb
from pullback.cpu.conv import transpose as matrix
from pullback.cpu.engine import memory, recycling, recycling_kernel, roofs
from pullback.cpu.engine.addresses import address_of

BIG = (1 << 18,)
F4 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def _empty() -> None:
    gc.collect()
    memory.release_memory()


def test_large_results_are_aligned_and_ordinary_arrays() -> None:
    array = memory.new_array(BIG, F4)
    assert array.ctypes.data % memory.LINE == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert type(array) is np.ndarray
    array[:] = 1
    assert array.sum() == BIG[0]


def test_memory_comes_back_only_when_the_last_view_is_gone() -> None:
    array = memory.new_array(BIG, F4)
    address, view = array.ctypes.data, array[10:20]
    view[:] = 7
    del array
    other = memory.new_array(BIG, F4)
    assert other.ctypes.data != address
    other[:] = 0
    assert (view == 7).all()
    del view
    assert memory.new_array(BIG, F4).ctypes.data == address


def reachable(array: np.ndarray) -> Iterator[Any]:
    """Everything that who has an array can get hold of, and that may hold on to its memory."""
    yield array.data
    yield array.view(np.uint8)
    yield array.__dlpack__()
    yield array.ctypes
    base = array.base
    while base is not None:
        yield base
        yield memoryview(base)
        base = getattr(base, "base", None)


def test_who_holds_anything_that_reaches_the_memory_keeps_it() -> None:
    for place in range(len(list(reachable(memory.new_array(BIG, F4))))):
        array = memory.new_array(BIG, F4)
        address, held = array.ctypes.data, list(reachable(array))[place]
        del array
        gc.collect()
        others = [memory.new_array(BIG, F4) for _ in range(4)]
        assert address not in [other.ctypes.data for other in others], type(held)
        del held


def test_results_own_their_memory() -> None:
    """There is no object between an array and its memory that could be kept without the other."""
    array = memory.new_array(BIG, F4)
    assert array.base is None
    assert array.flags.owndata
    array[:] = np.arange(array.size)
    array.resize(2 * array.size)
    assert array[5] == 5
    assert array[-1] == 0
    array.resize(7, refcheck=False)
    assert array.tolist() == list(range(7))


def test_addresses_are_those_numpy_tells() -> None:
    whole = np.arange(24.0).reshape(2, 3, 4)
    for array in (whole, whole[1:], whole[:, ::2], whole.T, np.empty((0, 3)), np.float16(2).reshape(1)):
        assert address_of(array) == array.ctypes.data


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[recycling.Shelf]:
    """The shelf, with room for 4 MiB."""
    shelf = memory._shelf()
    assert shelf is not None
    before = int(shelf.words[recycling_kernel.LIMIT])
    shelf.words[recycling_kernel.LIMIT] = 4 << 20
    yield shelf
    shelf.words[recycling_kernel.LIMIT] = before


def kept_sizes(shelf: recycling.Shelf) -> list[int]:
    """Of the blocks on the shelf, the newest first: both ways round the ring of all, and in the buckets, they are the same."""

    def around(start: int, direction: int, before: int) -> list[int]:
        blocks, ring = [], word_at(start + 8 * direction)
        while ring != start:
            blocks.append(ring - before)
            ring = word_at(ring + 8 * direction)
        return blocks

    def word_at(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    first = shelf.words.ctypes.data
    blocks = around(first + 8 * recycling_kernel.NEXT, 0, 16)
    assert blocks == around(first + 8 * recycling_kernel.NEXT, 1, 16)[::-1]
    buckets = range(first + 8 * recycling_kernel.FIRST_BUCKET, first + shelf.words.nbytes, 16)
    assert sorted(blocks) == sorted(block for bucket in buckets for block in around(bucket, 0, 32))
    sizes = [word_at(block + 8) for block in blocks]
    assert sum(sizes) == memory.kept_bytes()
    return sizes


def test_what_is_kept_is_bounded_and_can_be_released(shelf: recycling.Shelf) -> None:
    lent = int(shelf.words[recycling_kernel.LENT])
    arrays = [memory.new_array(BIG, F4) for _ in range(8)]
    assert shelf.words[recycling_kernel.LENT] == lent + (8 << 20)
    del arrays
    assert memory.kept_bytes() == 4 << 20
    assert kept_sizes(shelf) == [1 << 20] * 4
    assert shelf.words[recycling_kernel.LENT] == lent
    assert pb.release_memory() >= 4 << 20
    assert memory.kept_bytes() == 0
    assert kept_sizes(shelf) == []


def test_what_was_freed_longest_ago_goes_first(shelf: recycling.Shelf) -> None:
    """Sizes that never come back must not keep out those that do."""
    for number in range(2000):
        memory.new_array(((64 << 10) + 4 * number,), np.dtype(np.int8))
    assert memory.kept_bytes() <= 4 << 20
    sizes = kept_sizes(shelf)
    assert sizes == [(64 << 10) + 4 * number for number in range(1999, 1999 - len(sizes), -1)]
    assert len(sizes) > 50
    address = memory.new_array(BIG, F4).ctypes.data
    assert memory.new_array(BIG, F4).ctypes.data == address
    memory.new_array(((64 << 10) + 4 * 1990,), np.dtype(np.int8))
    assert kept_sizes(shelf)[:2] == [(64 << 10) + 4 * 1990, 1 << 20]


def test_what_is_too_large_or_too_small_is_not_kept(shelf: recycling.Shelf) -> None:
    memory.new_array((5 << 20,), np.dtype(np.int8))
    memory.new_array(((64 << 10) - 1,), np.dtype(np.int8))
    assert kept_sizes(shelf) == []


def test_freeing_in_many_threads(shelf: recycling.Shelf) -> None:
    lent = int(shelf.words[recycling_kernel.LENT])

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        held: list[np.ndarray] = []
        for number in chance.integers(16, 64, 2000):
            array = memory.new_array((int(number), 4096), np.dtype(np.uint8))
            array[:, 0] = seed
            held.append(array)
            if len(held) > 8:
                assert (held.pop(int(chance.integers(8)))[:, 0] == seed).all()

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert 0 < memory.kept_bytes() <= 4 << 20
    assert kept_sizes(shelf)
    assert shelf.words[recycling_kernel.LENT] == lent


def test_memory_that_is_not_to_be_had() -> None:
    with pytest.raises(MemoryError):
        memory.new_array((1 << 46,), F4)
    assert type(memory.new_array(BIG, F4)) is np.ndarray
    assert np.empty(1 << 20).base is None  # NumPy's own allocator is in force again
    get_name = import_module("numpy._core.multiarray" if np.__version__[0] != "1" else "numpy.core.multiarray").get_handler_name
    assert get_name() == get_name(np.empty(1 << 20)) == "default_allocator"


def test_an_unknown_numpy_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_shelf", lambda: None)
    array = memory.new_array(BIG, F4)
    assert array.ctypes.data % memory.LINE == 0
    assert array.nbytes == 1 << 20
    assert memory.kept_bytes() == memory.release_memory() == 0


def test_results_that_outlive_all_modules() -> None:
    code = """
import builtins, sys
import numpy as np
import pullback as pb
x = np.ones((8, 64, 64, 32), np.float32)
with pb.backend("cpu"):
    builtins.kept, sys.kept = pb.avg_pool(x, 2), [pb.max_pool(x, 2)]
sys.kept.append(sys.kept)
"""
    run_python(code)


def test_offered_memory_is_taken_once_by_a_result_of_its_kind() -> None:
    x = np.random.default_rng(0).normal(size=(8, 64, 64, 8)).astype(np.float32)
    expected = pb.avg_pool(x, 2)
    mine = np.full_like(expected, np.nan)
    with pb.backend("cpu"), memory.results_in([mine]):
        assert memory.new_array(expected.shape, np.dtype(np.float64)) is not mine
        result, again = pb.avg_pool(x, 2), pb.avg_pool(x, 2)
    assert result is mine
    for array in (result, again, pb.avg_pool(x, 2)):
        np.testing.assert_array_equal(array, expected)
    assert not np.shares_memory(again, mine)


def test_small_results_are_plain() -> None:
    assert memory.new_array((3, 4), F4).flags.owndata


def test_roofs_are_measured() -> None:
    for run in (roofs.copier(1 << 20), roofs.filler(1 << 20), roofs.filler(1)):
        run()
    assert roofs.fma_rate(1) > 1e8


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_transposed_matrices(dtype: str) -> None:
    for shape in ((1, 1), (3, 200), (64, 64), (65, 17), (130, 129), (0, 3), (5, 66, 16), (3, 49, 130)):
        whole = np.arange(np.prod(shape) + 8).astype(dtype)[8:].reshape(shape)
        np.testing.assert_array_equal(matrix.transposed(whole), whole.swapaxes(-1, -2))
        np.testing.assert_array_equal(matrix.transposed(whole[..., ::2]), whole[..., ::2].swapaxes(-1, -2))


def test_calls_of_all_sizes_take_the_same_working_memory() -> None:
    work = memory.take_work(3 * memory.SMALLEST)
    assert work.ctypes.data % memory.LINE == 0
    address = work.ctypes.data
    memory.put_work_back(work)
    smaller, more = memory.take_work(memory.SMALLEST), memory.take_work(memory.SMALLEST)
    assert smaller.ctypes.data == address
    assert more.ctypes.data != address, "two calls at once have memory of their own"
    memory.put_work_back(smaller)
    larger = memory.take_work(4 * memory.SMALLEST)
    assert larger.size >= 4 * memory.SMALLEST
    memory.put_work_back(larger)
    del work, smaller, more, larger
    assert memory.release_memory() >= 4 * memory.SMALLEST
    assert memory.release_memory() == 0
