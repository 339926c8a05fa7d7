"""Records: blocks of 64-bit words that plans write and kernels read, both by the names of their fields.

A record is a class that names its fields, each a word: `ints` (numbers and addresses) and `floats`. Fields of a parent come
first, so that what reads those takes any record of a family. Kernels see a record as an address whose attributes are loads at
fixed offsets (simd/record_types.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

WORD = 8

Words = npt.NDArray[np.int64]


class Record:
    """The base of all; `ints` and `floats` are names with spaces between them.

    `changes`: whether threads write its words while a kernel runs, so that each read is a load of its own.
    """

    ints: ClassVar[str] = ""
    floats: ClassVar[str] = ""
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = ()
    BYTES: ClassVar[int] = 0
    changes: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        own = [(name, kind) for kind in ("int", "float") for name in vars(cls).get(f"{kind}s", "").split()]
        inherited = [field for base in cls.__bases__ for field in getattr(base, "FIELDS", ())]
        cls.FIELDS = (*inherited, *own)
        if len(dict(cls.FIELDS)) < len(cls.FIELDS):
            raise TypeError(f"{cls.__name__} names a field twice")
        cls.BYTES = WORD * len(cls.FIELDS)

    @classmethod
    def place(cls, name: str) -> int:
        """The number of a field's word."""
        return [field for field, _ in cls.FIELDS].index(name)

    @classmethod
    def pack(cls, values: Mapping[str, Any]) -> Words:
        """The words of one record; `values` may hold more than its fields."""
        words = np.empty(len(cls.FIELDS), np.int64)
        for place, (name, kind) in enumerate(cls.FIELDS):
            words[place] = np.float64(values[name]).view(np.int64) if kind == "float" else values[name]
        return words

    @classmethod
    def table(cls, rows: Sequence[Mapping[str, int]]) -> Words:
        """The words of several records, one after the other."""
        return np.array([[row[name] for name, _ in cls.FIELDS] for row in rows], np.int64).reshape(len(rows), len(cls.FIELDS))

    @classmethod
    def columns(cls, **values: npt.ArrayLike) -> Words:
        """The words of as many records as the longest array has numbers; exactly the fields must be given."""
        if set(values) != {name for name, _ in cls.FIELDS}:
            raise TypeError(f"{cls.__name__} has the fields {[name for name, _ in cls.FIELDS]}, not {sorted(values)}")
        arrays = np.broadcast_arrays(*(np.asarray(values[name], np.int64).reshape(-1) for name, _ in cls.FIELDS))
        return np.ascontiguousarray(np.stack(arrays, axis=-1))
