"""What this machine can do at most: a plain copy, plain writing, and a loop of nothing but multiply-adds."""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.kernel_records import ROUNDS, MultiplyAdd, Transfer
from pullback.cpu.simd.native import LINE, copy_bytes, fence, fill_zero, stream_bytes, stream_line


def build(lanes: Any) -> dict[str, Any]:
    splat, fma, add_lanes, put_wide = lanes.splat, lanes.fma, lanes.add_lanes, lanes.put_wide

    def copy(args: Transfer, piece, scratch):
        start = piece * args.block
        count = min(args.block, args.size - start)
        for _ in range(args.rounds):
            if args.stream:
                stream_bytes(args.target + start, args.source + start, count)
                fence()
            else:
                copy_bytes(args.target + start, args.source + start, count)

    def fill(args: Transfer, piece, scratch):
        """Writing alone: a line of zeros, over and over."""
        start = piece * args.block
        count = min(args.block, args.size - start) // LINE * LINE
        if args.stream:
            for at in range(0, count, LINE):
                stream_line(args.target + start + at, args.source)
            fence()
        else:
            fill_zero(args.target + start, count)

    def multiply_add(args: MultiplyAdd, piece, scratch):
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = a10 = a11 = splat(0.0)
        x, y = splat(1.0), splat(1e-9)
        for _ in range(ROUNDS):
            a0, a1, a2, a3 = fma(x, y, a0), fma(x, y, a1), fma(x, y, a2), fma(x, y, a3)
            a4, a5, a6, a7 = fma(x, y, a4), fma(x, y, a5), fma(x, y, a6), fma(x, y, a7)
            a8, a9, a10, a11 = fma(x, y, a8), fma(x, y, a9), fma(x, y, a10), fma(x, y, a11)
        total = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11
        put_wide(args.result + piece * 8, add_lanes(total))

    return {"copy": copy, "fill": fill, "multiply_add": multiply_add}
