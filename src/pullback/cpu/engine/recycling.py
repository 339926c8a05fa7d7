"""Memory for large arrays that native code takes back when NumPy frees it, and hands out again: least recently freed goes first.

An array made here owns its memory like any other of NumPy's: it has no base, and memory comes back when NumPy itself would free
it, so never while somebody can still reach it. No step of the interpreter is run then: a finaliser in Python could be interrupted
by a signal handler, whose exception would be lost in it.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

import numpy as np

from pullback.cpu.engine.recycling_kernel import (
    ALLOCATE,
    BUCKETS,
    CONTEXT,
    DECREF,
    EMPTY,
    FETCH,
    FIRST_BUCKET,
    FREE,
    HANDLER,
    INCREF,
    KEPT,
    LIMIT,
    NEXT,
    PREVIOUS,
    RESTORE,
    SET_HANDLER,
    SMALLEST,
)  # fmt: skip
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.levels import numpy_core
from pullback.cpu.machine_code.variants import Variant
from pullback.rules import Array

__all__ = ["KEPT", "Shelf", "shelf"]


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler: how the memory of an array is allocated and freed."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


_CAPSULE = b"mem_handler"
_packers = tuple(struct.Struct(f"={3 + axes}q").pack for axes in range(33))

# Places in NumPy's table of C functions, which is the same in all versions of an ABI.
_ABI_VERSION, _EMPTY, _SET_HANDLER, _DEFAULT_HANDLER = 0, 184, 304, 306
_KNOWN_ABIS = (1, 2)


def _numpy_functions() -> Any:
    """NumPy's table of C functions, as an array of addresses; None where it is not one of those known here."""
    try:
        capsule = numpy_core()._ARRAY_API
    except (ImportError, AttributeError):
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_size_t))
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[_ABI_VERSION])()
    return table if version >> 24 in _KNOWN_ABIS else None


def _forever(thing: Any) -> Any:
    """Never freed: arrays are still freed when the interpreter ends, after all modules are gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


class Shelf:
    """Blocks that were freed, at most `limit` bytes of them; those under `smallest` bytes are not worth keeping."""

    def __init__(self, limit: int, smallest: int, functions: Any) -> None:
        native = code(Variant("engine.recycling", "shelf")).functions
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        usual = _Handler.from_address(pointer(ctypes.py_object.from_address(functions[_DEFAULT_HANDLER]).value, _CAPSULE))
        words = _forever(np.zeros(FIRST_BUCKET + 2 * BUCKETS, np.int64))
        self.words, self._at = words, words.ctypes.data
        places = np.arange(FIRST_BUCKET, words.size, 2)
        words[places] = words[places + 1] = self._at + 8 * places  # rings of nothing but themselves
        words[NEXT] = words[PREVIOUS] = self._at + 8 * NEXT
        words[LIMIT], words[SMALLEST] = limit, smallest
        words[ALLOCATE], words[FREE], words[CONTEXT] = usual.malloc, usual.free, usual.context or 0
        addresses = [native[f"shelf_{name}"] for name in ("allocate", "allocate_zeros", "resize", "free")]
        handler = _forever(_Handler(b"pullback", 1, self._at, *addresses))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        words[HANDLER] = id(_forever(capsule(ctypes.addressof(handler), _CAPSULE, None)))
        words[SET_HANDLER], words[EMPTY] = functions[_SET_HANDLER], functions[_EMPTY]
        for word, name in ((INCREF, "Py_IncRef"), (DECREF, "Py_DecRef"), (FETCH, "PyErr_Fetch"), (RESTORE, "PyErr_Restore")):
            words[word] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        # Functions that keep the interpreter: nothing else runs until they are done.
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p)
        self._new = new(native["shelf_new_array"])
        self._clear = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(native["shelf_clear"])

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Uninitialised, aligned to a cache line."""
        array: Array = self._new(_packers[len(shape)](self._at, id(dtype), len(shape), *shape))
        return array

    def clear(self) -> int:
        """Let go of all blocks on the shelf; how many bytes it was."""
        return int(self._clear(self._at))


@cache
def shelf(limit: int, smallest: int) -> Shelf | None:
    """The shelf of this process; None where NumPy's allocation works otherwise than is known here."""
    functions = _numpy_functions()
    return None if functions is None else Shelf(limit, smallest, functions)
