"""How XLA on the CPU calls an op: a handler of its foreign function interface, on XLA's own buffers, without copies.

The compiled program carries the whole call as text (op, keywords, shapes), so it means the same in another process; only a symbolic
batch is read from the arrays. The structs below are the beginnings of those in jaxlib's xla/ffi/api/c_api.h, which have kept their
places since API version 0.1.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import math
import threading
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pullback
from pullback.cpu.engine.memory import results_in
from pullback.jax.symbolic import filled, named
from pullback.rules import Array
from pullback.settings import Blocks, under

TARGET = "pullback_op"
API_VERSION = (0, 1)
METADATA, STRING, INTERNAL_ERROR = 1, 4, 13
Keywords = tuple[tuple[str, Any], ...]


def _struct(name: str, *fields: tuple[str, Any], extended: bool = True) -> Any:
    """A C struct; most begin with their size and a pointer to extensions."""
    first = [("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p)] if extended else []
    return type(name, (ctypes.Structure,), {"_fields_": [*first, *fields]})


_Pointers = ctypes.POINTER(ctypes.c_void_p)
_Ints = ctypes.POINTER(ctypes.c_int)
_Version = _struct("Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
_Api = _struct("Api", ("version", _Version), ("internal_api", ctypes.c_void_p), ("error_create", ctypes.c_void_p))
_Buffer = _struct(
    "Buffer",
    ("dtype", ctypes.c_int),
    ("data", ctypes.c_void_p),
    ("rank", ctypes.c_int64),
    ("sizes", ctypes.POINTER(ctypes.c_int64)),
)
_Values = _struct("Values", ("size", ctypes.c_int64), ("types", _Ints), ("values", _Pointers))
_Attributes = _struct(
    "Attributes", ("size", ctypes.c_int64), ("types", _Ints), ("names", ctypes.c_void_p), ("values", _Pointers)
)
_CallFrame = _struct(
    "CallFrame",
    ("api", ctypes.POINTER(_Api)),
    ("context", ctypes.c_void_p),
    ("stage", ctypes.c_int),
    ("arguments", _Values),
    ("results", _Values),
    ("attributes", _Attributes),
)
_Text = _struct("Text", ("start", ctypes.c_void_p), ("length", ctypes.c_size_t), extended=False)
_Metadata = _struct("Metadata", ("struct_size", ctypes.c_size_t), ("version", _Version), extended=False)
_Extension = _struct(
    "Extension",
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.c_void_p),
    ("metadata", ctypes.POINTER(_Metadata)),
    extended=False,
)
_ErrorArguments = _struct("ErrorArguments", ("message", ctypes.c_char_p), ("code", ctypes.c_int))


def results_of(op: str, keywords: dict[str, Any], blocks: Blocks, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Run the op of NumPy arrays; the results as a tuple (max_pool may have two)."""
    with under(blocks):
        results = getattr(pullback, op)(*arrays, **keywords)
    return results if isinstance(results, tuple) else (results,)


class _View:
    """Makes arrays of one shape and dtype on given addresses."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, jnp.dtype(dtype)
        self._bytes = ctypes.c_char * (math.prod(shape) * self.dtype.itemsize)

    def __call__(self, address: int, writeable: bool) -> Array:
        if not ctypes.sizeof(self._bytes):
            return np.empty(self.shape, self.dtype)
        array = np.frombuffer(self._bytes.from_address(address), self.dtype).reshape(self.shape)
        array.flags.writeable = writeable
        return array


def check_indices(op: str, shape: tuple[int, ...], dtypes: Iterable[Any]) -> None:
    """ValueError where indices that JAX, without 64-bit types, has cut to 32 bits cannot count the cells of a shape."""
    if math.prod(shape) > np.iinfo(np.int32).max and any(jnp.dtype(dtype) == np.int32 for dtype in dtypes):
        raise ValueError(
            f'{op}: int32 indices cannot count the cells of {shape}; use winners, or jax.config.update("jax_enable_x64", True)'
        )


class _Call:
    """One call as the compiled program states it; with the batch, where the program leaves it open."""

    def __init__(self, text: bytes, batch: int | None = None) -> None:
        stated = ast.literal_eval(text.decode())
        self._op, keywords, self._blocks, arguments, results = filled(stated, batch)
        self.open = batch is None and (keywords, arguments, results) != (stated[1], *stated[3:])
        if self.open:
            return
        if batch is not None:
            shapes, dtypes = zip(*arguments, *results, strict=True)
            check_indices(self._op, max(shapes, key=math.prod), dtypes)
        self._keywords = dict(keywords)
        self._arguments = [_View(*spec) for spec in arguments]
        self._results = [_View(*spec) for spec in results]

    def __call__(self, frame: Any) -> None:
        arguments, results = (
            tuple(view(_Buffer.from_address(values.values[i]).data, writeable) for i, view in enumerate(views))
            for values, views, writeable in (
                (frame.arguments, self._arguments, False),
                (frame.results, self._results, True),
            )
        )
        with results_in(results):
            computed = results_of(self._op, self._keywords, self._blocks, arguments)
        for result, array in zip(results, computed, strict=True):
            if array.__array_interface__["data"] != result.__array_interface__["data"] or array.strides != result.strides:
                np.copyto(result, array, casting="same_kind")


_call = functools.lru_cache(maxsize=4096)(_Call)


def as_text(op: str, keywords: Keywords, blocks: Blocks, arguments: Any, results: Any) -> str:
    """The call for `_Call`; arguments and results are anything with shape and dtype."""
    specs = [tuple((named(tuple(a.shape)), jnp.dtype(a.dtype).name) for a in arrays) for arrays in (arguments, results)]
    return repr((op, named(keywords), blocks, *specs))


_known = threading.local()


def _keep_thread() -> None:
    """Have Python remember a thread of XLA's after the call, and with it what the kernels keep for each thread."""
    if not hasattr(_known, "kept"):
        _known.kept = ctypes.pythonapi.PyGILState_Ensure()  # never released


def _handle(address: int) -> int | None:
    """The handler: fills the results of a call frame; null, or an error of XLA's."""
    frame = _CallFrame.from_address(address)
    try:
        if frame.extension_start:
            extension = _Extension.from_address(frame.extension_start)
            if extension.type == METADATA:  # XLA asks which version this handler is for, before its first call
                version = extension.metadata.contents.version
                version.major, version.minor = API_VERSION
                return None
        _keep_thread()
        text = _Text.from_address(frame.attributes.values[0])
        stated = ctypes.string_at(text.start, text.length)
        call = _call(stated)
        if call.open:  # every op's first array has the batch
            call = _call(stated, _Buffer.from_address(frame.arguments.values[0]).sizes[0])
        call(frame)
        return None
    except BaseException as error:  # none may pass into XLA
        message = f"{type(error).__name__}: {error}".encode()
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, INTERNAL_ERROR)
        created: int | None = _ErrorCreate(frame.api.contents.error_create)(ctypes.addressof(arguments))
        return created


_ErrorCreate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_handle)  # lives as long as XLA may call it
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(ctypes.cast(_HANDLER, ctypes.c_void_p)), platform="cpu")
