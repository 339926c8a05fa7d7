"""Numbers as the words of a record, for those that are given at a call, as addresses are."""

from __future__ import annotations

import struct

_pack, _unpack = struct.Struct("=d").pack, struct.Struct("=q").unpack


def float_word(number: float) -> int:
    """The bits of a float64."""
    word: int = _unpack(_pack(number))[0]
    return word
