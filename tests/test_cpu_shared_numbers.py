"""Numbers that plans and kernels both state: plans must not import kernels, which import Numba, so a test holds them together."""

from __future__ import annotations

import numpy as np

import pullback as pb
from pullback.cpu.conv import cells_kernel as cells_kernels
from pullback.cpu.conv import common as conv_common
from pullback.cpu.conv import direct as conv_direct
from pullback.cpu.conv import direct_kernel as direct_kernels
from pullback.cpu.conv import filter_gradient as conv_filter
from pullback.cpu.conv import filter_gradient_kernel as filter_kernels
from pullback.cpu.conv import transpose as matrix
from pullback.cpu.conv import transpose_kernel as matrix_kernels
from pullback.cpu.conv.sweep import sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.pool import gradient as pool_gradient
from pullback.cpu.pool import scatter_places_kernel as scatter_many
from pullback.cpu.simd import register_tiles as tiles
from pullback.cpu.simd.lanes import Lanes


def test_plans_and_kernels_agree() -> None:
    assert matrix.BAND == matrix_kernels.BAND
    assert pool_gradient.MANY == scatter_many.MANY
    assert conv_filter.TURNED == filter_kernels.TURNED
    assert 8 * conv_filter.ENTRY_WORDS == filter_kernels.ENTRY
    for name in ("ROWS_OF_CELLS", "PARTS_OF_ROWS", "CELLS_OF_IMAGES"):
        assert getattr(conv_direct, name) == getattr(direct_kernels, name)


def test_plans_and_kernels_agree_on_a_phase() -> None:
    x, f = np.empty((1, 9, 9, 3), np.float32), np.empty((3, 3, 3, 4), np.float32)
    sweep = sweep_of(pb.explain("conv", x, f, padding=1).problem)
    words = conv_common.phase_words(sweep, [0], [1, 1, 1], (0, 0, 0))
    assert 8 * len(words) == direct_kernels.PHASE == cells_kernels.PLACES


def test_plans_know_the_rows_of_a_tile() -> None:
    for dtype in ("float32", "float64"):
        assert conv_common.tile_rows() == tiles.tile_size(Lanes(dtype, machine().vector_bytes, "uint8"), 2)
