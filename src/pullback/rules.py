"""The named rules an op follows: who wins a maximum, what an empty window gives, and which number types are accepted.

Forward and backward of an op read the same rule object, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Layout = Literal["channels_last", "channels_first"]
Ties = Literal["first", "last"]
NanRule = Literal["propagate", "ignore", "leading"]

TIES: tuple[Ties, ...] = ("first", "last")
PUBLIC_NAN_RULES: tuple[NanRule, ...] = ("propagate", "ignore")

LAYOUT_NAMES: dict[str, Layout] = {
    "channels_last": "channels_last",
    "NWC": "channels_last",
    "NHWC": "channels_last",
    "NDHWC": "channels_last",
    "channels_first": "channels_first",
    "NCW": "channels_first",
    "NCHW": "channels_first",
    "NCDHW": "channels_first",
}

# bfloat16 comes from ml_dtypes and is recognised by name, so that the core does not import it.
FLOAT_NAMES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class WinnerRule:
    """Which cell of a window wins the maximum.

    ties: the first or the last of equal cells. nan: "propagate" lets the first NaN win, "ignore" never lets one win,
    "leading" lets a NaN win only where it is the first cell in bounds (ONNX Runtime 1.29 and later). above: a cell must
    exceed this to win at all (TF.js 2-D: -inf, ONNX Runtime 1.19: the lowest float32); None lets any cell win.
    """

    ties: Ties = "first"
    nan: NanRule = "propagate"
    above: float | None = None

    def wins(self, cell: Array, best: Array, has_best: Array) -> Array:
        """Mask of the places where `cell`, scanned after `best`, takes the window."""
        with np.errstate(invalid="ignore"):
            better = cell > best if self.ties == "first" else cell >= best
            takes = ~has_best | better
            if self.nan == "propagate":
                takes = (takes | np.isnan(cell)) & ~(has_best & np.isnan(best))
            elif self.nan == "ignore":
                takes &= ~np.isnan(cell)
            if self.above is not None:
                takes &= cell > self.above
        return np.asarray(takes)


def is_supported_float(dtype: np.dtype[Any]) -> bool:
    """Whether an op accepts this dtype (in any byte order)."""
    return dtype.name in FLOAT_NAMES
