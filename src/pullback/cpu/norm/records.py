"""The records of batch normalization: arguments of its kernels.

An array is `outer` x channels x `inner` elements in memory. With `inner` 1 it is a matrix of rows of channels, of which some may
be taken together as one wider row; else it is planes of `inner` elements, each of one channel.
"""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class Rows(Record):
    """`rows` of `width` elements, `per_piece` of them a piece; a row is all channels, `copies` times.

    row_bytes: from one row in scratch to the next.
    """

    ints = "rows per_piece width channels copies row_bytes"


class Planes(Record):
    """Planes of `inner` elements in `blocks` blocks of `block` elements; `units` blocks in all, `per_piece` of them a piece."""

    ints = "units per_piece blocks block inner channels"


class StatisticsRows(Rows):
    """partials: for every piece a row of shifts, one of sums of what is beyond these, one of its squares."""

    ints = "x partials"


class StatisticsPlanes(Planes):
    """partials: as of rows, for every block of an outer index, with as many numbers as there are channels."""

    ints = "x partials"


class Merge(Record):
    """`groups` partial results, each some rows of `width` elements in which the channels stand `copies` times; `block` channels a
    piece. A partial result is of `full` terms, every `blocks`-th of `last`; of `count` terms all together."""

    ints = "partials groups blocks full last width channels copies count block"


class MergeStatistics(Merge):
    """mean, variance: results. inv_std: 1 / sqrt(variance + eps), or 0. running_mean, running_variance: moved by the share
    `momentum` towards the mean and the unbiased variance, or 0."""

    ints = "mean variance inv_std running_mean running_variance"
    floats = "eps momentum"


class MergeGradient(Merge):
    """sum_dy, sum_dy_xhat: results. inv_std: what the second sum is multiplied by."""

    ints = "inv_std sum_dy sum_dy_xhat"


class Normalize(Record):
    """add: what is added before the ReLU, 0 for nothing; relu: whether there is one; top: what it ends at, NaN for nothing."""

    ints = "x mean inv_std scale bias add y relu"
    floats = "top"


class NormalizeRows(Rows, Normalize):
    pass


class NormalizePlanes(Planes, Normalize):
    pass


class Masked(Record):
    """y: the result of a ReLU, by which dy is masked, or 0. bias: where it is not 0, y is made again of x, scale and bias instead.
    top: what the ReLU ends at, NaN for nothing."""

    ints = "dy x y mean inv_std scale bias"
    floats = "top"


class GradientSums(Masked):
    """masked: where masked dy is stored, or 0."""

    ints = "masked partials"


class GradientSumsRows(Rows, GradientSums):
    pass


class GradientSumsPlanes(Planes, GradientSums):
    pass


class GradientApply(Masked):
    """count: of the elements of a channel, over which both sums were made."""

    ints = "sum_dy sum_dy_xhat dx"
    floats = "count"


class GradientApplyRows(Rows, GradientApply):
    pass


class GradientApplyPlanes(Planes, GradientApply):
    pass
