"""The sentences of a picture: what the op does, where its gradients go, and what each mark means."""

from __future__ import annotations

from collections.abc import Mapping

from pullback.pictures.panels import DIGITS, Panel, is_rounded
from pullback.pictures.problem import Cell, DrawnProblem

FORWARD = {
    "max_pool": "Every window gives its largest value. The cell that holds it is the window's winner.",
    "avg_pool": "Every window gives the sum of its cells, divided by its divisor.",
    "conv": "Every window gives the sum of its cells times the weights of the filter, tap by tap.",
}
BACKWARD = {
    "max_pool": "Every dy goes whole to the winner of its window. A cell that wins several gets the sum, "
    "a cell that wins none gets 0.",
    "avg_pool": "Every dy, divided by its divisor, goes to each cell of its window. A cell of several windows gets the sum.",
    "conv": "Every dy times a weight goes to that weight's cell: the sums are dx. Every dy times a cell goes to that cell's "
    "weight: the sums are dw.",
}
PHASES = (
    "With a stride, each cell is reached by some of the weights only: those with the cell's number. Cells of one number are a "
)
PHASES += "stride phase, and each phase is a small convolution of its own."


def backward_sentence(problem: DrawnProblem, by: str) -> str:
    return PHASES if by == "phases" else BACKWARD[problem.op]


def legend(problem: DrawnProblem, panels: Mapping[str, Panel], outlined: list[Cell], by: str) -> list[tuple[str, str]]:
    """(mark, meaning) for each mark of this picture: a kind of cell, "tag", "tied", "taps", "bar", or "" for a remark."""
    found = []
    kinds = {content.kind for content in panels["x"].contents()}
    tags = [tag for content in panels["x"].contents() for tag in content.tags]
    if by == "windows":
        where = {"max_pool": "the cells it wins", "avg_pool": "the cells it pays", "conv": "the cells it pays"}[problem.op]
        found.append(("tag", f"the name of a window: on its output and on {where}"))
    if any(tag.hollow for tag in tags):
        found.append(("tied", "a tie: as large as that window's maximum, but another cell wins"))
    if problem.window.rank == 1 and outlined:
        found.append(("bar", "a window, at the cells it reads"))
    elif max(problem.window.dilation) > 1 and outlined:
        found.append(("taps", "what a dilated window reads; it skips the cells between"))
    meanings = {
        "padding": "padding: no value, no gradient",
        "beyond": "past the padding, where the last window reaches",
        "cropped": "cropped by a negative padding: never read",
    }
    found += [(kind, meaning) for kind, meaning in meanings.items() if kind in kinds]
    count = len(problem.outputs)
    if any(content.full for name in ("x", "dx") for content in panels[name].contents()):
        found.append(("", f"A cell without room for all names leaves out ties, or counts: so many of the {count} windows."))
    if by == "windows" and len(outlined) == 1 < count:
        found.append(("", f"Of the {count} windows only {problem.label(outlined[0])} is outlined."))
    arrays = [a for a in (problem.x, problem.y, problem.dy, problem.dx, problem.filter, problem.dfilter) if a is not None]
    if any(is_rounded(float(value)) for array in arrays for value in array.flat):
        found.append(("", f"Numbers are rounded to {DIGITS} digits."))
    return found


def description(problem: DrawnProblem) -> str:
    """The picture in words, for those who cannot see it."""
    sizes = " by ".join(map(str, problem.window.input_size))
    outputs = " by ".join(map(str, problem.window.output_size))
    return f"{problem.call} of {sizes} cells gives {outputs}. {FORWARD[problem.op]} {BACKWARD[problem.op]}"
