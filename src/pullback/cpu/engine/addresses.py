"""Where an array's elements lie. NumPy's own ways to say it take a microsecond each, as long as a small kernel."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_HEADER = object.__basicsize__  # NumPy's array is an object's header followed by the address of its data
_word_at = ctypes.c_size_t.from_address


def _from_interface(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _from_header(array: Any) -> int:
    return _word_at(id(array) + _HEADER).value


def _choose() -> Callable[[Any], int]:
    """The quick way where this interpreter and this NumPy are seen to be built like that."""
    if sys.implementation.name != "cpython" or np.ndarray.__basicsize__ < _HEADER + ctypes.sizeof(ctypes.c_size_t):
        return _from_interface
    probes = (np.empty(3), np.empty((2, 2), np.int8)[1:], np.empty(0))
    alike = all(_from_header(probe) == _from_interface(probe) for probe in probes)
    return _from_header if alike else _from_interface


address_of = _choose()
