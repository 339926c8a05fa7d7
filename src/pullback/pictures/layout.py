"""Panels into a scene: forward above, backward below; the windows as outlines in 2-D and as bars under the cells in 1-D."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pullback.pictures.cell_shapes import CELL, paint_background, paint_content, paint_mark
from pullback.pictures.panels import Panel, window_colour
from pullback.pictures.problem import Cell, DrawnProblem
from pullback.pictures.scene import Lines, Rectangle, Scene, Text
from pullback.pictures.words import FORWARD, backward_sentence, description, legend

MARGIN = 18.0
GAP = 30.0  # between panels
HEADING = 28.0
ARROW = 24.0
NARROWEST, WIDEST = 380.0, 600.0  # of a picture with panels side by side; wider ones have them one below the other
SENTENCE, CAPTION, CODE = 15.0, 15.0, 14.0
MOST_OUTLINED = 9
LANE = 13.0


def make_scene(problem: DrawnProblem, panels: Mapping[str, Panel], outlined: list[Cell], by: str) -> Scene:
    scene = Scene(problem.call, description(problem))
    forward, backward = _columns(panels, "x", "y", "w"), _columns(panels, "dx", "dy", "dw")
    widths = [max(_width(panel) for band in (forward, backward) for panel in band[side]) for side in (0, 1)]
    beside = problem.window.rank == 2 and sum(widths) + GAP + 2 * MARGIN <= WIDEST
    scene.width = max(sum(widths) + GAP if beside else max(widths), NARROWEST) + 2 * MARGIN
    inner = scene.width - 2 * MARGIN
    y = MARGIN
    y += scene.paragraph(MARGIN, y, _keywords(problem.call), CODE, inner, code=True, bold=True) + 10
    for title, sentence, arrow, (left, right) in (
        ("forward", FORWARD[problem.op], "→", forward),
        ("backward", backward_sentence(problem, by), "←", backward),
    ):
        y += scene.paragraph(MARGIN, y, [title], SENTENCE + 2, inner, bold=True)
        y += scene.paragraph(MARGIN, y, sentence.split(), SENTENCE, inner, fill="muted") + 6
        if beside:
            other = MARGIN + widths[0] + GAP
            scene.add(Text(other - GAP / 2, y + HEADING + CELL, arrow, ARROW, fill="muted"))
            y = max(_paint_stack(scene, problem, part, outlined, x, y) for part, x in ((left, MARGIN), (right, other)))
        else:  # what is given comes first
            stack = [*left, *right[::-1]] if title == "forward" else [right[0], *left, *right[1:]]
            y = _paint_stack(scene, problem, stack, outlined, MARGIN, y)
        y += 4
    for mark, meaning in legend(problem, panels, outlined, by):
        paint_mark(scene, mark, problem.label(problem.outputs[0]), MARGIN, y)
        y += scene.paragraph(MARGIN + (30 if mark else 0), y, meaning.split(), SENTENCE - 1, inner - 30, fill="muted") + 5
    scene.height = y + MARGIN - 5
    scene.shapes.insert(0, Rectangle(0, 0, scene.width, scene.height, fill="page", radius=8))
    return scene


def _keywords(call: str) -> list[str]:
    """A call in the parts that a line may end with: not within a tuple."""
    return re.split(r" (?=\w+=)", call)


def _columns(panels: Mapping[str, Panel], left: str, *right: str) -> tuple[list[Panel], list[Panel]]:
    return [panels[left]], [panels[name] for name in right if name in panels]


def outlined_windows(problem: DrawnProblem, outline: str | Cell, by: str) -> list[Cell]:
    """The windows to outline: on "auto" all, unless they are many or lie over each other too often; then the first alone."""
    if not isinstance(outline, str):
        return [outline]
    if outline == "none" or (outline == "auto" and by == "phases"):
        return []
    over_each_other = max(map(_levels, [problem] * problem.window.rank, range(problem.window.rank)))
    many = len(problem.outputs) > MOST_OUTLINED or over_each_other > 3
    if outline == "auto" and problem.window.rank == 2 and many:
        return problem.outputs[:1]
    return problem.outputs


def _levels(problem: DrawnProblem, axis: int) -> int:
    """How many windows lie over each other along an axis."""
    w = problem.window
    return min(w.output_size[axis], -(-((w.kernel[axis] - 1) * w.dilation[axis] + 1) // w.stride[axis]))


def _width(panel: Panel) -> float:
    return max(panel.columns * CELL, 0.56 * CAPTION * (len(panel.name) + len(panel.caption) + 2))


def _paint_stack(scene: Scene, problem: DrawnProblem, stack: list[Panel], outlined: list[Cell], x: float, y: float) -> float:
    """Panels below each other; where the next thing may begin."""
    for panel in stack:
        scene.add(Text(x, y + HEADING / 2 - 2, panel.name, CAPTION + 2, start=True, bold=True))
        indent = 0.7 * (CAPTION + 2) * len(panel.name) + 8
        scene.add(Text(x + indent, y + HEADING / 2 - 2, panel.caption, CAPTION, fill="muted", start=True))
        y += HEADING
        places = [
            (content, x + column * CELL, y + number * CELL)
            for number, row in enumerate(panel.rows)
            for column, content in enumerate(row)
        ]
        for place in places:
            paint_background(scene, *place)
        if problem.window.rank == 2 and (panel.name == "x" or (panel.name == "dx" and len(outlined) == 1)):
            for output in outlined:
                _paint_outline(scene, problem, panel, output, x, y)
        for place in places:
            paint_content(scene, *place)
        y += len(panel.rows) * CELL
        if panel.name == "x" and problem.window.rank == 1:
            y += _paint_bars(scene, problem, panel, outlined, x, y)
        y += 14
    return y


def _paint_outline(scene: Scene, problem: DrawnProblem, panel: Panel, output: Cell, x: float, y: float) -> None:
    """A window around its cells, a little inside the windows that it shares an edge with; if dilated, around each tap."""
    levels = max(_levels(problem, 0), _levels(problem, 1))
    inset = 3 + 4.0 * (sum(output) % levels)
    stroke = f"line{window_colour(problem, output)}"
    places = [(x + (c - panel.first[1]) * CELL, y + (r - panel.first[0]) * CELL) for r, c in problem.cells(output)]
    dilated = max(problem.window.dilation) > 1
    (left, top), (right, bottom) = places[0], places[-1]
    size = (right - left + CELL - 2 * inset, bottom - top + CELL - 2 * inset)
    width = 1.5 if dilated else 3.0
    scene.add(Rectangle(left + inset, top + inset, *size, stroke=stroke, stroke_width=width, radius=5, dashed=dilated))
    for tap_x, tap_y in places if dilated else ():
        side = CELL - 2 * (inset + 2)
        scene.add(Rectangle(tap_x + inset + 2, tap_y + inset + 2, side, side, stroke=stroke, stroke_width=3, radius=5))


def _paint_bars(scene: Scene, problem: DrawnProblem, panel: Panel, outlined: list[Cell], x: float, y: float) -> float:
    """Windows of one axis as bars below their cells, a dot under each tap; the height that they take."""
    ends: list[int] = []  # of the last bar in each lane
    for output in outlined:
        cells = [cell - panel.first[1] for (cell,) in problem.cells(output)]
        lane = next((n for n, end in enumerate(ends) if end < cells[0]), len(ends))
        ends[lane : lane + 1] = [cells[-1]]
        colour = window_colour(problem, output)
        middle = y + 10 + lane * (LANE + 7) + LANE / 2
        left, right = x + cells[0] * CELL + 4, x + (cells[-1] + 1) * CELL - 4
        scene.add(Lines(((left, middle, right, middle),), f"line{colour}", 2))
        for cell in cells:
            scene.add(Rectangle(x + cell * CELL + 8, middle - LANE / 2, CELL - 16, LANE, fill=f"line{colour}", radius=4))
            tap_x = x + (cell + 0.5) * CELL
            scene.add(Text(tap_x, middle, problem.label(output), LANE, fill=f"on{colour}", bold=True))
    return len(ends) * (LANE + 7) + (4 if ends else 0)
