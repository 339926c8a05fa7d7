"""Max pooling cell by cell: the winner rule itself, for the windows vectors cannot decide, and winners as flat indices.

Vectors read -inf for the cells outside the input, which a window of -inf (or of NaN under the "leading" rule) might take for one
of its own: rows with such a window are done again here.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.windows_kernel import cells_read
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline


def make_exact(lanes: Any, ties: str, nan: str, floor: bool, losers: bool) -> tuple[Any, Any]:
    """(look_again, index_row) for one element type and winner rule."""
    SIZE, WINNER = lanes.size, lanes.winner_size
    NONE = 256**WINNER - 1
    get, put, get_winner, put_winner = lanes.get, lanes.put, lanes.get_winner, lanes.put_winner
    first_wins = ties == "first"

    @inline
    def one_window(x, lines, cells, above):
        """Value and winner of one window, cell by cell: the rule itself."""
        line_at, line_count = lines
        cell0, count, step, col_tap, _ = cells
        best, winner, has = get(x), NONE, False
        for e in range(line_count):
            line, tap = x + (get_int(line_at + 24 * e) + cell0) * SIZE, get_int(line_at + 24 * e + 8) + col_tap
            for k in range(count):
                cell = get(line + k * step * SIZE)
                better = cell > best if first_wins else cell >= best
                if not has:
                    wins = True
                elif nan == "propagate":
                    wins = best == best and (better or cell != cell)
                elif nan == "ignore":
                    wins = cell == cell and (better or best != best)
                else:
                    wins = better
                if wins:
                    best, winner, has = cell, tap + k, True
        if has and losers and ((floor and not best > above) or (not floor and best != best)):
            winner, has = NONE, False
        return best, winner, has

    @outline
    def look_again(x, y, winners, channels, lines, col_axis, empty, above):
        """One output row by the rule itself; y or winners may be 0 for not wanted."""
        stay_outline()
        for i in range(col_axis[0] * channels):
            col, c = i // channels, i % channels
            value, tap, has = one_window(x + c * SIZE, lines, cells_read(col_axis, channels, col), above)
            if y:
                if has:
                    put(y + i * SIZE, value)
                else:
                    put(y + i * SIZE, empty)
            if winners:
                put_winner(winners + i * WINNER, tap)

    @outline
    def index_row(indices, winners, length, channels, base, col_base, tap_base):
        """Winners of one row as flat indices into the input, -1 for none."""
        stay_outline()
        for i in range(length):
            tap = get_winner(winners + i * WINNER)
            first = base + get_int(col_base + 8 * (i // channels)) + i % channels
            put_int(indices + 8 * i, -1 if tap == NONE else first + get_int(tap_base + 8 * tap))

    return look_again, index_row
