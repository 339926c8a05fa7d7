"""Native operations beside vectors: streaming copies, atomics and calls through function pointers, as Numba intrinsics."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic

from pullback.cpu.engine.sizes import LINE
from pullback.cpu.simd.vectors import I8, I32, I64, declare, inline, pointer


@intrinsic
def stream_line(context: Any, target: Any, source: Any) -> Any:
    """Copy one 64-byte line past the cache; the target must be aligned to 64 bytes."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        line = ir.VectorType(I64, LINE // 8)
        value = builder.load(pointer(builder, args[1], line), align=1)
        store = builder.store(value, pointer(builder, args[0], line), align=LINE)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def copy_bytes(context: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = I8.as_pointer()
        function = declare(builder, "llvm.memcpy.p0.p0.i64", ir.VoidType(), [byte, byte, I64, ir.IntType(1)])
        flag = ir.Constant(ir.IntType(1), 0)
        builder.call(function, [pointer(builder, args[0], I8), pointer(builder, args[1], I8), args[2], flag])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def fill_zero(context: Any, target: Any, count: Any) -> Any:
    """memset to 0."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = declare(builder, "llvm.memset.p0.i64", ir.VoidType(), [I8.as_pointer(), I8, I64, ir.IntType(1)])
        zero = ir.Constant(I8, 0)
        builder.call(function, [pointer(builder, args[0], I8), zero, args[1], ir.Constant(ir.IntType(1), 0)])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def emit_prefetch(builder: Any, address: Any) -> None:
    """Code that prefetches a line into the second-level cache."""
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    builder.call(function, [pointer(builder, address, I8), *(ir.Constant(I32, word) for word in (0, 2, 1))])


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """Prefetch a line that will be read soon into the second-level cache; any address will do."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit_prefetch(builder, args[0])
        return ctx.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def fence(context: Any) -> Any:
    """Order all memory operations, streaming stores included."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return ctx.get_dummy_value()

    return types.void(), emit


@intrinsic
def in_order(context: Any) -> Any:
    """Loads before this are issued before those after it. LLVM turns long runs of them round, which memory read ahead dislikes."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
        return ctx.get_dummy_value()

    return types.void(), emit


@intrinsic
def opaque(context: Any, value: Any) -> Any:
    """A number whose origin the compiler forgets, or it would keep vectors that count along wherever the number is spread."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", args, side_effect=False)

    return types.int64(types.int64), emit


@intrinsic
def within(context: Any, offset: Any, size: Any) -> Any:
    """Whether 0 <= offset < size, in one comparison; the compiler is told to expect it."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        bit = ir.IntType(1)
        inside = builder.icmp_unsigned("<", *args)
        expect = declare(builder, "llvm.expect.i1", bit, [bit, bit])
        return builder.call(expect, [inside, ir.Constant(bit, 1)])

    return types.boolean(types.int64, types.int64), emit


@inline
def stream_bytes(target: int, source: int, count: int) -> None:
    """Copy a buffer past the cache: whole lines streamed, the ragged ends stored as usual."""
    head = min((LINE - target % LINE) % LINE, count)
    copy_bytes(target, source, head)
    lines = (count - head) // LINE
    for i in range(lines):
        stream_line(target + head + i * LINE, source + head + i * LINE)
    done = head + lines * LINE
    copy_bytes(target + done, source + done, count - done)


@intrinsic
def atomic_add(context: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address, sequentially consistent; the value before."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def atomic_load(context: Any, address: Any) -> Any:
    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], I64), "seq_cst", 8)

    return types.int64(types.int64), emit


@intrinsic
def spin_pause(context: Any) -> Any:
    """Tell the core that this is a spin loop, where it has a word for it."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        architecture = builder.module.triple.split("-")[0]
        if architecture == "x86_64":
            builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif architecture in ("aarch64", "arm64"):
            builder.call(declare(builder, "llvm.aarch64.hint", ir.VoidType(), [I32]), [ir.Constant(I32, 1)])
        return ctx.get_dummy_value()

    return types.void(), emit


@intrinsic
def call_piece(context: Any, function: Any, arguments: Any, piece: Any, scratch: Any) -> Any:
    """Call a compiled kernel by address: Numba's native convention, result and exception slots unused."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        slot = I8.as_pointer()
        kind = ir.FunctionType(I32, [slot, slot, I64, I64, I64])
        unused = alloca_once(builder, I64, 8)  # once a function: in a loop every piece would take its share of the stack
        target = pointer(builder, args[0], kind)
        place = builder.bitcast(unused, slot)
        builder.call(target, [place, place, *args[1:]])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), emit
