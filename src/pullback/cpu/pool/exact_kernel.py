"""Max pooling cell by cell: the winner rule itself, for the windows vectors cannot decide, and winners as flat indices.

Vectors read -inf for the cells outside the input, which a window of -inf (or of NaN under the "leading" rule) might take for one
of its own: rows with such a window are done again here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.pool.windows_kernel import cells_read, line_at
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline


@cache
def make_exact(lanes: Any, ties: str, nan: str, floor: bool, losers: bool) -> tuple[Any, Any]:
    """(look_again, index_row) for one element type and winner rule."""
    SIZE, WINNER = lanes.size, lanes.winner_size
    NONE = 256**WINNER - 1
    get, put, get_winner, put_winner = lanes.get, lanes.put, lanes.get_winner, lanes.put_winner
    first_wins = ties == "first"

    @inline
    def one_window(x, lines, cells, above):
        """Value and winner of one window, cell by cell: the rule itself."""
        line_table, line_count = lines
        cell0, count, step, col_tap, _ = cells
        best, winner, has = get(x), NONE, False
        for e in range(line_count):
            line = line_at(line_table, e)
            at, tap = x + (line.place + cell0) * SIZE, line.tap + col_tap
            for k in range(count):
                cell = get(at + k * step * SIZE)
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
    def look_again(args, x, y, winners, channels, lines, col_axis):
        """One output row by the rule itself; y or winners may be 0 for not wanted."""
        stay_outline()
        for i in range(col_axis.outputs * channels):
            col, c = i // channels, i % channels
            value, tap, has = one_window(x + c * SIZE, lines, cells_read(col_axis, channels, col), args.above)
            if y:
                if has:
                    put(y + i * SIZE, value)
                else:
                    put(y + i * SIZE, args.empty)
            if winners:
                put_winner(winners + i * WINNER, tap)

    @outline
    def index_row(args, indices, winners, first_col, cols, channels, image, row):
        """Winners of the columns of a row of an image, from first_col to cols, as flat indices into the input, -1 for none."""
        stay_outline()
        base = image * args.index_image + get_int(args.row_base + 8 * row)
        for col in range(first_col, cols):
            first = base + get_int(args.col_base + 8 * col)
            for c in range(channels):
                at = col * channels + c
                tap = get_winner(winners + at * WINNER)
                put_int(indices + 8 * at, -1 if tap == NONE else first + get_int(args.tap_base + 8 * tap) + c)

    return look_again, index_row
