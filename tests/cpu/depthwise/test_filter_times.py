"""Filter gradients of few channels in channels_first: of three kernels the one that is said to be the quickest runs."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.depthwise import filter_times

CASES = [
    (channels, taps, stride, size)
    for channels in ((1, 1), (3, 2), (16, 2), (64, 4), (240, 2), (40, 10))
    for taps, size in (((3, 3), (24, 24)), ((5, 7), (40, 30)), ((2, 2, 2), (12, 12, 12)), ((5,), (600,)))
    for stride in (1, 2, 4)
]


@pytest.mark.parametrize(("channels", "taps", "stride", "size"), CASES)
def test_the_quickest_of_three_runs(
    channels: tuple[int, int], taps: tuple[int, ...], stride: int, size: tuple[int, ...]
) -> None:
    c, m = channels
    pads = tuple(k // 2 for k in taps)
    out = tuple((n + 2 * p - k) // stride + 1 for n, k, p in zip(size, taps, pads, strict=True))
    dy, x = np.zeros((2, m, *out), np.float32), np.zeros((2, c, *size), np.float32)
    found = pb.explain("conv_grad_filter", dy, x, (m, c, *taps), stride=stride, padding=pads, layout="channels_first")
    pays = [kernel for kernel in filter_times.KERNELS if filter_times.why_not(found.problem, kernel) is None]
    if not pays:  # Winograd is asked first where there are more channels of dy
        assert filter_times.why_not(found.problem, "direct") == "Winograd saves more here"
        return
    assert len(pays) == 1
    quicker = ("slide", "flat") if channels == (1, 1) else ("winograd",)  # asked before these, or before the last of them
    assert found.chosen is not None
    assert found.chosen.name in (f"group_{pays[0]}", pays[0], *quicker)


def test_too_many_channels_are_left_alone() -> None:
    dy, x = np.zeros((2, 11, 9, 9), np.float32), np.zeros((2, 30, 9, 9), np.float32)
    found = pb.explain("conv_grad_filter", dy, x, (11, 30, 3, 3), padding=1, layout="channels_first")
    assert "at most" in (filter_times.why_not(found.problem, "planes") or "")
