"""SIMD registers as Numba values: their type, arithmetic, comparisons and masks, and scalars in memory.

Each operation is a Numba intrinsic that emits the LLVM instruction of its name, so kernels are written as ordinary Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.datamodel import models, register_default
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
LLVM_TYPES = {
    "bool": I1,
    "uint8": I8,
    "uint16": I16,
    "uint32": I32,
    "uint64": I64,
    "int64": I64,
    "float32": F32,
    "float64": F64,
}

# Helpers of kernels are inlined and never raise, so a kernel is one flat function without Python in it.
inline = njit(forceinline=True, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

OPTIMISED_FIRST: set[str] = set()  # names of functions that are optimised by themselves before they are inlined


def inline_loop(function: Callable[..., Any]) -> Any:
    """`inline` for a short loop over taps: it is unrolled for itself, and again where it has been inlined."""
    OPTIMISED_FIRST.add(function.__qualname__)
    return inline(function)


# Functions too large to be inlined: loops around them would carry all their addresses along.
outline = njit(forceinline=False, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic
def stay_outline(context: Any) -> Any:
    """First statement of an outlined function: tells LLVM not to inline it."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return ctx.get_dummy_value()

    return types.void(), emit


class Vector(types.Type):
    """Numba type of a SIMD register: `lanes` elements of a scalar type."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"Vector({element}, {lanes})")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(LLVM_TYPES[self.element], self.lanes)

    @property
    def is_float(self) -> bool:
        return self.element.startswith("float")


@register_default(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Vector) -> None:
        super().__init__(manager, fe_type, fe_type.llvm)


def _binary(function: Any, float_op: str, int_op: str) -> None:
    """Teach Numba `vector (op) vector`."""

    @infer_global(function)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(function, Vector, Vector)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, float_op if sig.args[0].is_float else int_op)(*args)


_binary(operator.add, "fadd", "add")
_binary(operator.sub, "fsub", "sub")
_binary(operator.mul, "fmul", "mul")
_binary(operator.truediv, "fdiv", "sdiv")
_binary(operator.and_, "and_", "and_")
_binary(operator.or_, "or_", "or_")


def opaque(builder: Any, value: Any) -> Any:
    """The same 64-bit number in a register, of which the optimiser knows nothing more."""
    kind = ir.FunctionType(I64, [I64])
    return builder.asm(kind, "", "=r,0", [value], False)


def constant_vector(vector: ir.VectorType, values: Any) -> ir.Constant:
    return ir.Constant(vector, list(values))


def splat_lanes(builder: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def declare(builder: Any, name: str, result: Any, arguments: Any) -> Any:
    """An LLVM intrinsic declared by name (llvmlite's own helper refuses vector types)."""
    module = builder.module
    found = module.globals.get(name)
    return found if found is not None else ir.Function(module, ir.FunctionType(result, arguments), name)


def some_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """Mask of the first `count` lanes."""
    wide = ir.VectorType(I32, lanes)
    return builder.icmp_signed("<", constant_vector(wide, range(lanes)), splat_lanes(builder, builder.trunc(count, I32), lanes))


def _compare(name: str, ordered: bool, op: str) -> Any:
    """A comparison of two vectors as an intrinsic that gives a mask."""

    def typed(context: Any, a: Any, b: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            if not sig.args[0].is_float:
                return builder.icmp_unsigned(op, *args)
            return (builder.fcmp_ordered if ordered else builder.fcmp_unordered)(op, *args)

        return Vector("bool", a.lanes)(a, b), emit

    typed.__name__ = name
    return intrinsic(typed)


# Ordered comparisons are false where a NaN takes part, the unordered ones (_or_nan) true.
equal = _compare("equal", True, "==")
greater = _compare("greater", True, ">")
greater_equal = _compare("greater_equal", True, ">=")
greater_or_nan = _compare("greater_or_nan", False, ">")
greater_equal_or_nan = _compare("greater_equal_or_nan", False, ">=")


@intrinsic
def choose(context: Any, mask: Any, a: Any, b: Any) -> Any:
    """Lanes of a where the mask is set, else of b."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return a(mask, a, b), emit


@intrinsic
def invert(context: Any, mask: Any) -> Any:
    """The lanes a mask does not set."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.not_(args[0])

    return mask(mask), emit


@intrinsic
def any_lane(context: Any, mask: Any) -> Any:
    """Whether any lane of a mask is set."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(sig.args[0].lanes))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(mask), emit


def memory_scalar(llvm_type: Any, numba_type: Any, widen: Any, narrow: Any) -> tuple[Any, Any]:
    """(get, put) of one scalar at an address, widened to the Numba type it is computed with."""

    @intrinsic
    def get(context: Any, address: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return widen(builder, builder.load(pointer(builder, args[0], llvm_type)))

        return numba_type(types.int64), emit

    @intrinsic
    def put(context: Any, address: Any, value: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(narrow(builder, args[1]), pointer(builder, args[0], llvm_type))
            return ctx.get_dummy_value()

        return types.void(types.int64, numba_type), emit

    return get, put


def same(builder: Any, value: Any) -> Any:
    return value


get_int, put_int = memory_scalar(I64, types.int64, same, same)
get_byte, _ = memory_scalar(I8, types.int64, lambda b, raw: b.zext(raw, I64), lambda b, value: b.trunc(value, I8))
get_int32, _ = memory_scalar(I32, types.int64, lambda b, raw: b.sext(raw, I64), lambda b, value: b.trunc(value, I32))


@intrinsic
def widen_word(context: Any, source: Any, target: Any) -> Any:
    """16 bits of memory into 32, with zeros above."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.zext(builder.load(pointer(builder, args[0], I16)), I32)
        builder.store(bits, pointer(builder, args[1], I32), align=4)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def bfloat16_to_float32(builder: Any, bits: Any, wide: Any, integer: Any) -> Any:
    shift = ir.Constant(integer, [16] * integer.count) if isinstance(integer, ir.VectorType) else ir.Constant(integer, 16)
    return builder.bitcast(builder.shl(builder.zext(bits, integer), shift), wide)


def float32_to_bfloat16(builder: Any, value: Any, narrow: Any, integer: Any) -> Any:
    """Round to nearest even on the bits; a NaN keeps its top bits and is made quiet."""

    def constant(number: int) -> Any:
        return (
            ir.Constant(integer, [number] * integer.count)
            if isinstance(integer, ir.VectorType)
            else ir.Constant(integer, number)
        )

    bits = builder.bitcast(value, integer)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.add(builder.add(bits, constant(0x7FFF)), odd)
    quiet = builder.or_(bits, constant(0x400000))
    is_nan = builder.fcmp_unordered("!=", value, value)
    return builder.trunc(builder.lshr(builder.select(is_nan, quiet, rounded), constant(16)), narrow)
