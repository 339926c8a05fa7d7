"""Winners that no forward has found, looked for before a kernel trusts them: codes beyond the taps, and taps outside the input."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.vectors import any_lane, equal, get_byte, get_int32, greater_equal, inline, invert, outline, stay_outline


@outline
def has_false_winner(args, winners):
    """Whether a window of an image that sticks out says that a tap outside the input won.

    border: where the winner of each such output lies in its image and where the codes of its kind begin, int32, four at a
    time; false_codes: a byte for each code, 1 where the tap lies outside.
    """
    stay_outline()
    border, false_codes = args.border, args.false_codes
    for i in range(0, args.border_count, 4):
        faults = 0
        for j in range(i, i + 4):  # unrolled
            faults |= get_byte(false_codes + get_int32(border + 8 * j + 4) + get_byte(winners + get_int32(border + 8 * j)))
        if faults:
            return True
    return False


@cache
def make_beyond_taps(lanes: Any) -> Any:
    """beyond_taps(winners, length, taps): whether a winner of one byte is no tap, or says that there is none."""
    quad = lanes.times(4)
    Q, splat, splat_code, load_codes, load_codes_some = (
        quad.count,
        quad.splat,
        quad.splat_code,
        quad.load_codes,
        quad.load_codes_some,
    )

    @inline
    def beyond_taps(winners, length, taps):
        found = invert(equal(splat(0.0), splat(0.0)))
        j = 0
        while j + Q <= length:
            found = found | greater_equal(load_codes(winners + j, Q), splat_code(taps))
            j += Q
        if j < length:
            found = found | greater_equal(load_codes_some(winners + j, length - j), splat_code(taps))
        return any_lane(found)

    return beyond_taps
