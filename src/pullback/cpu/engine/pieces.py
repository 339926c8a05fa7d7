"""How plans cut work: pieces worth claiming, stores past the cache, slack around what lies in scratch."""

from __future__ import annotations

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.sizes import ceil_div

PIECE_BYTES = 48 << 10  # bytes moved by a piece: it stays in the second-level cache with room to spare


def cut_pieces(units: int, moved: int) -> tuple[int, int]:
    """(units per piece, pieces): pieces of about PIECE_BYTES, so that claiming them costs nothing."""
    per_piece = max(1, min(units, units * PIECE_BYTES // max(1, moved)))
    return per_piece, ceil_div(units, per_piece)


_stream_from: int | None = None


def stream_from(total_bytes: int | None) -> None:
    """Plans made after this call stream from so many bytes on; None: three quarters of the last-level cache. For tests, fits."""
    global _stream_from
    _stream_from = total_bytes


def streams(total_bytes: int) -> bool:
    """Whether an output is so large that non-temporal stores should write it past the cache."""
    return total_bytes > (machine().l3_bytes * 3 // 4 if _stream_from is None else _stream_from)


def slack() -> int:
    """Bytes that a kernel may read and write past the rows it keeps in scratch."""
    return 4 * machine().vector_bytes
