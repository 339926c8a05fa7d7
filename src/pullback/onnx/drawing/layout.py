"""Stages into a scene: the forward pass from top to bottom on the left, its backward nodes beside it from bottom to top."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pullback.onnx.drawing.collapse import collapsed
from pullback.onnx.drawing.stages import FAMILIES, Part, Stage, Stages, counted
from pullback.pictures.scene import CODE_WIDTH, LETTER_WIDTH, Lines, Rectangle, Scene, Text

MARGIN, BOX, GAP, LANE = 20.0, 290.0, 150.0, 13.0  # widths: around all, of a node, between the two columns, of a skip's line
BETWEEN = 26.0  # from a stage to the next, where the arrow is
INSIDE = 9.0  # from a box's edge to its text
LINE, SMALL_LINE = 19.0, 16.0
LARGE, NORMAL, SMALL = 17.0, 14.0, 11.5
BOLD_WIDTH = 0.66  # of a bold letter, by its size
HEAD = 5.0  # of an arrow
LINK = 1.6  # strength of lines
MOST_NAMES = 2  # beside an arrow, and of parameters where stages are joined
# Colours of pictures/theme.py; an op of no family stays grey.
TINTS = {
    "convolution": "tint0",
    "pooling": "tint1",
    "normalization": "tint2",
    "loss": "tint3",
    "dense": "tint4",
    "activation": "tint5",
}


@dataclass
class Placed:
    """A stage with the place of its two boxes."""

    stage: Stage
    top: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True)
class Frame:
    """Where the columns are."""

    left: float
    right: float  # of the backward boxes: their left edge

    @property
    def middle_left(self) -> float:
        return self.left + BOX / 2

    @property
    def middle_right(self) -> float:
        return self.right + BOX / 2


def make_scene(graph: Stages) -> Scene:
    """The picture of a training graph."""
    stages = collapsed(graph.stages)
    skips = [(read, number) for number, stage in enumerate(stages) for read in stage.reads if read != number - 1]
    lanes = _lanes(skips)
    side = LANE * (max(lanes.values(), default=-1) + 1) + (10 if lanes else 0)
    frame = Frame(MARGIN + side, MARGIN + side + BOX + GAP)
    title = f"Training graph of {graph.name}" if graph.name else "Training graph"
    scene = Scene(title, _words(graph), width=frame.right + BOX + side + MARGIN)
    y = MARGIN
    y += scene.paragraph(MARGIN, y, [title], LARGE, scene.width - 2 * MARGIN, bold=True)
    y += scene.paragraph(MARGIN, y, _words(graph).split(), NORMAL - 1, scene.width - 2 * MARGIN, fill="muted") + 12
    for middle, word in ((frame.middle_left, "forward ↓"), (frame.middle_right, "backward ↑")):
        scene.add(Text(middle, y + 8, word, NORMAL, fill="muted", bold=True))
    y = _paint_inputs(scene, graph, frame, y + 26)
    placed: list[Placed] = []
    for stage in stages:
        placed.append(Placed(stage, y, _height(stage)))
        y = placed[-1].bottom + BETWEEN
    _paint_groups(scene, placed, frame, side)
    for number, each in enumerate(placed):
        _paint_stage(scene, each, frame, last=number == len(placed) - 1)
    _paint_arrows(scene, placed, frame)
    for skip, lane in lanes.items():
        _paint_skip(scene, placed[skip[0]], placed[skip[1]], frame, LANE * (lane + 1))
    scene.height = y - BETWEEN + MARGIN
    scene.shapes.insert(0, Rectangle(0, 0, scene.width, scene.height, fill="page", radius=8))
    return scene


def _words(graph: Stages) -> str:
    return (
        f"{graph.forward_nodes} forward and {graph.backward_nodes} backward nodes; {graph.parameters} parameters of "
        f"{graph.numbers:,} numbers; loss {graph.loss!r}. A dashed arrow names what a backward node reads of the forward pass."
    )


def _lanes(skips: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """A line of its own beside the boxes for each connection past a stage: the shorter, the nearer."""
    taken: list[list[tuple[int, int]]] = []
    found = {}
    for start, end in sorted(skips, key=lambda skip: skip[1] - skip[0]):
        free = (lane for lane, others in enumerate(taken) if all(end <= a or start >= b for a, b in others))
        lane = next(free, len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append((start, end))
        found[start, end] = lane
    return found


def _height(stage: Stage) -> float:
    return 2 * INSIDE + LINE * len(stage.parts) + SMALL_LINE * (1 + len(_shown_parameters(stage))) - 2


def _shown_parameters(stage: Stage) -> list[tuple[str, str, str]]:
    """All of them for one node; of several nodes the first, and how many there are beside it."""
    names = stage.parameters
    if len(stage.parts) == 1 or len(names) <= MOST_NAMES:
        return names
    more = f"and {len(names) - MOST_NAMES + 1} more"
    return [*names[: MOST_NAMES - 1], (more, "", more)]


def _fit(text: str, width: float, letter: float) -> str:
    """A text that is too long without its middle."""
    most = max(int(width / letter), 3)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def _tint(part: Part) -> str:
    return next((TINTS[family] for family, ops in FAMILIES.items() if part.op in ops), "pad")


def _paint_inputs(scene: Scene, graph: Stages, frame: Frame, y: float) -> float:
    for name, shape in graph.inputs:
        scene.add(Rectangle(frame.left, y, BOX, 26, fill="cell", stroke="grid", radius=13))
        text = _fit(f"{name}  {shape}", BOX - 30, NORMAL * LETTER_WIDTH)
        scene.add(Text(frame.middle_left, y + 13, text, NORMAL - 1))
        y += 32
    return y + BETWEEN - 6


def _paint_stage(scene: Scene, placed: Placed, frame: Frame, *, last: bool) -> None:
    stage, y = placed.stage, placed.top
    columns = [frame.left, frame.right] if stage.has_backward else [frame.left]
    for x in columns:
        scene.add(Rectangle(x, y, BOX, placed.height, fill=_tint(stage.parts[0]), stroke="grid", radius=7))
    y += INSIDE
    for part in stage.parts:
        scene.add(Text(frame.left + INSIDE, y + LINE / 2, part.op, NORMAL, bold=True, start=True))
        indent = INSIDE + (len(part.op) + 1) * NORMAL * BOLD_WIDTH
        scene.add(Text(frame.left + indent, y + LINE / 2, part.detail, NORMAL - 1, start=True))
        text = _fit(counted(part.backward), BOX - 2 * INSIDE, NORMAL * BOLD_WIDTH)
        scene.add(Text(frame.right + INSIDE, y + LINE / 2, text, NORMAL, bold=True, start=True))
        y += LINE
    wide = BOX - 2 * INSIDE - (len(stage.shape) + 2) * SMALL * LETTER_WIDTH
    line = f"{_fit(stage.name, wide, SMALL * LETTER_WIDTH)}  {stage.shape}"
    scene.add(Text(frame.left + INSIDE, y + SMALL_LINE / 2, line, SMALL, fill="ink", start=True))
    y += SMALL_LINE
    for name, shape, gradient in _shown_parameters(stage):
        wide = BOX - 2 * INSIDE - (len(shape) + 2) * SMALL * CODE_WIDTH
        entry = f"{_fit(name, wide, SMALL * CODE_WIDTH)}  {shape}"
        scene.add(Text(frame.left + INSIDE, y + SMALL_LINE / 2, entry, SMALL, code=True, start=True))
        entry = _fit(gradient, BOX - 2 * INSIDE, SMALL * CODE_WIDTH)
        scene.add(Text(frame.right + INSIDE, y + SMALL_LINE / 2, entry, SMALL, code=True, start=True))
        y += SMALL_LINE
    if stage.has_backward:
        _paint_kept(scene, placed, frame, turn=last)


def _paint_kept(scene: Scene, placed: Placed, frame: Frame, *, turn: bool) -> None:
    """An arrow with the names of what the backward nodes read: dashed, or whole at the loss, where backward begins."""
    start, end = frame.left + BOX, frame.right
    y = placed.top + INSIDE + LINE / 2
    names = placed.stage.kept
    if turn:
        scene.add(Lines(((start, y, end - 1, y),), "muted", LINK), _head(end - 1, y, 1, 0, "muted"))
    elif names:
        dashes = [(x, y, min(x + 6, end - 4), y) for x in range(int(start) + 4, int(end) - 8, 10)]
        scene.add(Lines(tuple(dashes), "hatch", 1.2), _head(end - 2, y, 1, 0, "hatch"))
    shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 1], f"and {len(names) - MOST_NAMES + 1} more"]
    for number, name in enumerate(shown):
        text = _fit(name, GAP - 12, SMALL * LETTER_WIDTH)
        scene.add(Text((start + end) / 2, y + (number + 1) * (SMALL + 2.5) - 2, text, SMALL, fill="muted"))


def _head(x: float, y: float, dx: float, dy: float, stroke: str) -> Lines:
    """The head of an arrow that ends at (x, y), going in the direction (dx, dy)."""
    back = (x - HEAD * dx, y - HEAD * dy)
    wings = [(back[0] + side * HEAD * 0.7 * dy, back[1] + side * HEAD * 0.7 * dx) for side in (1, -1)]
    return Lines(tuple((a, b, x, y) for a, b in wings), stroke, LINK)


def _paint_arrows(scene: Scene, placed: list[Placed], frame: Frame) -> None:
    """Between neighbours: forward down, backward up."""
    x = frame.middle_left
    if placed:
        top = placed[0].top
        scene.add(Lines(((x, top - BETWEEN, x, top - 1),), "muted", LINK), _head(x, top - 1, 0, 1, "muted"))
    for number, (above, below) in enumerate(pairwise(placed)):
        if number not in below.stage.reads:
            continue
        x = frame.middle_left
        scene.add(Lines(((x, above.bottom, x, below.top - 1),), "muted", LINK), _head(x, below.top - 1, 0, 1, "muted"))
        if above.stage.has_backward and below.stage.has_backward:
            x = frame.middle_right
            scene.add(Lines(((x, below.top, x, above.bottom + 1),), "muted", LINK), _head(x, above.bottom + 1, 0, -1, "muted"))


def _paint_skip(scene: Scene, source: Placed, target: Placed, frame: Frame, away: float) -> None:
    """A connection past other stages, in a lane left of the forward boxes, and its gradient right of the backward ones."""
    start, end, edge, lane = source.bottom - 12, target.top + 14, frame.left, frame.left - away
    scene.add(Lines(((edge, start, lane, start), (lane, start, lane, end), (lane, end, edge - 1, end)), "muted", LINK))
    scene.add(_head(edge - 1, end, 1, 0, "muted"))
    if source.stage.has_backward and target.stage.has_backward:
        edge, lane = frame.right + BOX, frame.right + BOX + away
        scene.add(Lines(((edge, end, lane, end), (lane, end, lane, start), (lane, start, edge + 1, start)), "muted", LINK))
        scene.add(_head(edge + 1, start, -1, 0, "muted"))


def _paint_groups(scene: Scene, placed: list[Placed], frame: Frame, side: float) -> None:
    """A frame around stages that come several times, with the number in the middle."""
    for group in dict.fromkeys(each.stage.group for each in placed if each.stage.group is not None):
        inside = [each for each in placed if each.stage.group == group]
        top, bottom = inside[0].top - 9, inside[-1].bottom + 9
        x, wide = frame.left - side - 6, frame.right + BOX - frame.left + 2 * side + 12
        scene.add(Rectangle(x, top, wide, bottom - top, stroke="line0", stroke_width=1.4, radius=10, dashed=True))
        text = f"{inside[0].stage.repeats} times"
        scene.add(Text(frame.left + BOX + GAP / 2, bottom - 10, text, NORMAL, fill="muted", bold=True))
