"""Pictures of one window problem and its gradients: `draw`. What draws is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from pullback.pictures.drawing import Drawing

    PerAxis = int | Sequence[int]


def draw(
    op: str,
    x: npt.ArrayLike,
    window: PerAxis | None = None,
    *,
    stride: PerAxis | None = None,
    padding: Any = None,
    dilation: PerAxis | None = None,
    rounding: str | None = None,
    ties: str | None = None,
    nan: str | None = None,
    count_include_pad: bool | None = None,
    divisor: int | None = None,
    filter: npt.ArrayLike | None = None,
    dy: npt.ArrayLike | None = None,
    seed: int = 0,
    outline: str | PerAxis = "auto",
    by: str = "windows",
    theme: str = "auto",
) -> Drawing:
    """A picture of "max_pool", "avg_pool" or "conv" over one image of one channel, and of how its gradients flow.

    x: a list or array of 1 or 2 axes; an int or a tuple of ints is a size instead, filled with random digits (`seed`). `window`
    is the size of the windows; a convolution takes `filter`, or gets a random one of that size. dy: ones unless given. The
    other keywords are those of the op. outline: "all" windows, "none", or the output whose window alone is outlined. by="phases"
    colours the gradients of a convolution by stride phase. theme: "light", "dark", or "auto", which follows the reader's.

    The result has `.svg`, `.save("a.svg" or "a.png")`, shows itself in a notebook, and as a str is a picture for a terminal.
    """
    from pullback.pictures.drawing import make_drawing
    from pullback.pictures.problem import make_problem

    keywords = {
        "stride": stride, "padding": padding, "dilation": dilation, "rounding": rounding, "ties": ties, "nan": nan,
        "count_include_pad": count_include_pad, "divisor": divisor,
    }  # fmt: skip
    given = {name: value for name, value in keywords.items() if value is not None}  # of the rest the op knows its own defaults
    problem = make_problem(op, x, window, filter=filter, dy=dy, seed=seed, **given)
    return make_drawing(problem, outline=outline, by=by, theme=theme)
