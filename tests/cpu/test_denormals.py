"""No kernel computes with what others have left in working memory: as numbers that may be denormal, and many CPUs take a hundred
cycles for each of those (a filter gradient once took 126 times as long on one).

The CPU itself notes when it meets one: the flag is cleared, the call runs alone on this thread with denormal numbers in all working
memory, and the flag must still be clear. Lanes whose results nobody wants count as well.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import same_bits

import pullback as pb
from pullback.cpu.engine import memory, threads

MXCSR, DENORMAL = 28, 2  # where glibc's fenv_t keeps that register; its flag
on_x86_linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the flag is read from glibc's environment on x86"
)
# What finds maxima compares, which raises the flag and costs nothing.
OPS = ("conv", "avg_pool", "max_pool_grad_from_winners", "max_pool_grad_from_indices")


def met_denormals(call: Callable[[], Any]) -> bool:
    """Whether the CPU met a denormal number in this call."""
    libm, state = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libm.fesetenv(ctypes.c_void_p(-1))
    call()
    libm.fegetenv(state)
    return bool(state.raw[MXCSR] & DENORMAL)


def leave_denormals() -> None:
    """In all working memory that is kept for later calls."""
    for kept in (*(scratch._memory for scratch in threads._free), *memory._work):
        whole = kept[: kept.size // 4 * 4].view(np.uint32)
        whole[:] = 5


@on_x86_linux
def test_the_flag_is_seen() -> None:
    tiny, one = np.full(64, 1e-40, np.float32), np.ones(64, np.float32)
    assert met_denormals(lambda: np.add(tiny, one))
    assert not met_denormals(lambda: np.add(one, one))


@on_x86_linux
def test_no_kernel_meets_what_was_left() -> None:
    met, names = [], set()
    with pb.threads(1):
        for name, call in chain(same_bits.convolutions(), same_bits.pools()):
            if not name.startswith(OPS) or "/pairs" in name:  # that instruction takes denormal numbers for zero
                continue
            try:
                call()
            except pb.registry.KernelError:
                continue
            leave_denormals()
            names.add(name.split()[0])
            if met_denormals(call):
                met.append(name)
    assert len(names) > 30, names
    assert not met, "\n".join(met)
