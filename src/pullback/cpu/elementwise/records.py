"""The records of passes over flat memory: arguments of the elementwise kernels."""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class Flat(Record):
    """`count` elements, `per_piece` of them a piece: whole cache lines, but for the last."""

    ints = "per_piece count"


class Map(Flat):
    """out from up to three arrays; those that a kernel does not need are the first again."""

    ints = "a b c out"


class Limited(Flat):
    """out from x (and dy) with limits."""

    ints = "x dy out"
    floats = "low high"


class SgdStep(Flat):
    """first: the momentum of before is not looked at, there was none. taken: how much of a gradient is."""

    ints = "p g v first"
    floats = "g_scale lr momentum taken weight_decay"


class AdamStep(Flat):
    """shrink: what decoupled weight decay leaves of a parameter. step_size: the rate by the first bias correction; root: one over
    the root of the second."""

    ints = "p g m v"
    floats = "g_scale beta1_rest beta2 beta2_rest weight_decay shrink step_size root eps"


class SquareSums(Flat):
    """sums: a float64 for every piece."""

    ints = "g sums"
