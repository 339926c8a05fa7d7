"""Records (engine/records.py) as kernels see them: an address whose attributes are loads at fixed offsets.

`args.field` reads a word, `args.field = value` writes one, `args.field_at` is where it lies. What no thread changes while a
kernel runs is read by invariant loads, which LLVM takes out of loops and does once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic

from pullback.cpu.engine.records import WORD, Record
from pullback.cpu.simd.vectors import F64, I64, pointer

ADDRESS = "_at"


class RecordType(types.Type):
    """Numba type of the address of a record."""

    def __init__(self, record: type[Record], changes: bool) -> None:
        self.record, self.changes = record, changes
        super().__init__(name=f"Record({record.__module__}.{record.__name__}, {changes})")

    def field(self, name: str) -> tuple[int, str]:
        """Where a field lies, and its kind; the address of a field has the kind "address"."""
        kinds = dict(self.record.FIELDS)
        if name in kinds:
            return WORD * self.record.place(name), kinds[name]
        if name.removesuffix(ADDRESS) in kinds:
            return WORD * self.record.place(name.removesuffix(ADDRESS)), "address"
        raise AttributeError(f"{self.record.__name__} has no field {name!r}")


@register_default(RecordType)
class _RecordModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: RecordType) -> None:
        super().__init__(manager, fe_type, I64)


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: RecordType, name: str) -> Any:
        return types.float64 if record.field(name)[1] == "float" else types.int64


def _word(builder: Any, record: RecordType, address: Any, name: str) -> tuple[Any, str]:
    offset, kind = record.field(name)
    return builder.add(address, ir.Constant(I64, offset)), kind


@lower_getattr_generic(RecordType)
def _read(context: Any, builder: Any, record: RecordType, address: Any, name: str) -> Any:
    place, kind = _word(builder, record, address, name)
    if kind == "address":
        return place
    load = builder.load(pointer(builder, place, F64 if kind == "float" else I64), align=WORD)
    if not record.changes:
        load.set_metadata("invariant.load", builder.module.add_metadata([]))
    return load


@lower_setattr_generic(RecordType)
def _write(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    record, kind = sig.args
    place, _ = _word(builder, record, args[0], name)
    value = context.cast(builder, args[1], kind, types.float64 if record.field(name)[1] == "float" else types.int64)
    builder.store(value, pointer(builder, place, value.type), align=WORD)


def records_at(record: type[Record], *, pitch: int | None = None, changes: bool | None = None) -> Any:
    """at(address, number): record `number` of those that begin at an address, `pitch` bytes apart where more follows each.

    changes: whether its words are written meanwhile.
    """
    kind, apart = RecordType(record, record.changes if changes is None else changes), pitch or record.BYTES

    @intrinsic
    def at(context: Any, address: Any, number: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.add(args[0], builder.mul(args[1], ir.Constant(I64, apart)))

        return kind(types.int64, types.int64), emit

    return at
