"""Numbers that plans and kernels both state: plans must not import kernels, which import Numba, so a test holds them together."""

from __future__ import annotations

from pullback.cpu import conv_common, conv_filter, depthwise_flat, depthwise_slide, matrix, pool_gradient
from pullback.cpu.kernels import conv_filter as filter_kernels
from pullback.cpu.kernels import depthwise_flat as flat_kernels
from pullback.cpu.kernels import depthwise_slide as slide_kernels
from pullback.cpu.kernels import matrix as matrix_kernels
from pullback.cpu.kernels import scatter_many, tiles
from pullback.cpu.kernels.lanes import Lanes
from pullback.cpu.machine import machine


def test_plans_and_kernels_agree() -> None:
    assert depthwise_slide.SPARE == slide_kernels.SPARE
    assert (depthwise_flat.SUMS, depthwise_flat.MANY) == (flat_kernels.SUMS, flat_kernels.MANY)
    assert matrix.BAND == matrix_kernels.BAND
    assert pool_gradient.MANY == scatter_many.MANY
    assert conv_filter.TURNED == filter_kernels.TURNED


def test_plans_know_the_rows_of_a_tile() -> None:
    for dtype in ("float32", "float64"):
        assert conv_common.tile_rows() == tiles.tile_size(Lanes(dtype, machine().vector_bytes, "uint8"), 2)
