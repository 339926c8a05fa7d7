"""Memory of results: aligned, recycled when the last view is gone, bounded, released on request."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import pullback as pb
from pullback.cpu import matrix, memory, roofs
from pullback.cpu.addresses import address_of

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


def test_views_of_the_base_do_not_give_memory_back_early() -> None:
    array = memory.new_array(BIG, F4)
    address = array.ctypes.data
    part = array.base[8:16]  # type: ignore[index]
    del part
    gc.collect()
    assert memory.new_array(BIG, F4).ctypes.data != address
    array[:] = 1


def test_addresses_are_those_numpy_tells() -> None:
    whole = np.arange(24.0).reshape(2, 3, 4)
    for array in (whole, whole[1:], whole[:, ::2], whole.T, np.empty((0, 3)), np.float16(2).reshape(1)):
        assert address_of(array) == array.ctypes.data


def test_what_is_kept_is_bounded_and_can_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 << 20)
    arrays = [memory.new_array(BIG, F4) for _ in range(8)]
    del arrays
    gc.collect()
    assert 0 < memory._kept() <= 3 << 20
    assert pb.release_memory() > 0
    assert memory._kept() == 0
    assert not memory._free


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
