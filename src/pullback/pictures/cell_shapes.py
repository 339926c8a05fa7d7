"""One cell of a picture as shapes: its background, its number, the tags of its windows; and the marks of the legend."""

from __future__ import annotations

from pullback.pictures.panels import MOST_TAGS, Content, Tag
from pullback.pictures.scene import Lines, Rectangle, Scene, Text

CELL = 48.0
VALUE, CROWDED = 20.0, 16.0
DIGIT, LETTER = 0.62, 0.78  # widths by the size of the type, of bold ones
TAG = 15.0
TAG_LETTER = 13.0
NOTE = 12.5
PER_LINE = MOST_TAGS // 2
MOST_TINTS = 4
HATCH_STEPS = 4


def paint_background(scene: Scene, content: Content, x: float, y: float, side: float = CELL) -> None:
    if content.kind == "beyond":
        scene.add(Rectangle(x + 2, y + 2, side - 4, side - 4, stroke="hatch", dashed=True))
        return
    bare = content.kind in ("padding", "cropped")
    scene.add(Rectangle(x, y, side, side, fill="pad" if bare else "cell"))
    tints = content.tints if len(content.tints) <= MOST_TINTS else ()
    for number, colour in enumerate(tints):
        scene.add(Rectangle(x + number * side / len(tints), y, side / len(tints), side, fill=f"tint{colour}"))
    if bare:
        _hatch(scene, x, y, side)
    scene.add(Rectangle(x, y, side, side, stroke="grid"))


def paint_content(scene: Scene, content: Content, x: float, y: float) -> None:
    """The number in the middle, above it the cell's own name, below it a note or the tags of windows."""
    if not content.value:
        return
    lines = 1 if content.note else -(-len(content.tags) // PER_LINE)
    middle = (0.5, 0.36, 0.19)[lines] + (0.0 if content.name is None else 0.14)
    crowded = lines == 2 or (content.note and content.name)
    size = min(CROWDED if crowded else VALUE, (CELL - 7) / (LETTER if content.value.isalpha() else DIGIT) / len(content.value))
    style = {"strong": ("ink", True), "plain": ("ink", False), "faint": ("muted", False)}
    fill, bold = style["faint" if content.kind == "cropped" else content.weight]
    scene.add(Text(x + CELL / 2, y + middle * CELL, content.value, size, fill=fill, bold=bold))
    if content.name is not None:
        paint_tag(scene, content.name, x + 1, y + 1)
    if content.note:
        scene.add(Text(x + CELL / 2, y + CELL - 8, content.note, min(NOTE, (CELL - 4) / DIGIT / len(content.note))))
        return
    for line in range(lines):
        _paint_tags(scene, content.tags[line * PER_LINE : (line + 1) * PER_LINE], x, y + CELL - (lines - line) * (TAG + 1) - 1)


def _paint_tags(scene: Scene, tags: tuple[Tag, ...], x: float, y: float) -> None:
    """A line of tags in the middle of a cell, squeezed where they would not fit."""
    wide = sum(_tag_width(tag) + 1 for tag in tags) - 1
    squeeze = min(1.0, (CELL - 2) / wide)
    at = x + (CELL - wide * squeeze) / 2
    for tag in tags:
        paint_tag(scene, tag, at, y, squeeze)
        at += (_tag_width(tag) + 1) * squeeze


def _tag_width(tag: Tag) -> float:
    return TAG + 8 * (len(tag.label) - 1)


def paint_tag(scene: Scene, tag: Tag, x: float, y: float, squeeze: float = 1.0) -> None:
    """A small box with the window's name; hollow for a tie."""
    width = _tag_width(tag) * squeeze
    fill, letter = ("page", "ink") if tag.hollow else (f"line{tag.colour}", f"on{tag.colour}")
    if not tag.hollow:  # an edge that sets it off from an outline of its colour
        scene.add(Rectangle(x - 1, y - 1, width + 2, TAG + 2, fill="cell", radius=4))
    inset = 1.0 if tag.hollow else 0.0
    box = (x + inset, y + inset, width - 2 * inset, TAG - 2 * inset)
    scene.add(Rectangle(*box, fill=fill, stroke=f"line{tag.colour}" if tag.hollow else None, stroke_width=2, radius=3))
    size = TAG_LETTER * max(squeeze, 0.85)
    scene.add(Text(x + width / 2, y + TAG / 2, tag.label, size, fill=letter, bold=not tag.hollow))


def paint_mark(scene: Scene, mark: str, label: str, x: float, y: float) -> None:
    """The mark of a line of the legend; `label` is the first window's."""
    if mark in ("tag", "tied"):
        paint_tag(scene, Tag(label, 0, hollow=mark == "tied"), x + 2, y + 2)
    elif mark == "taps":
        scene.add(Rectangle(x + 3, y + 3, 14, 14, stroke="line0", stroke_width=3, radius=3))
    elif mark == "bar":
        scene.add(Rectangle(x, y + 4, 24, 11, fill="line0", radius=4))
    elif mark:
        paint_background(scene, Content(kind=mark), x, y, 20)


def _hatch(scene: Scene, x: float, y: float, side: float) -> None:
    """Diagonals from edge to edge."""
    ends = []
    for step in range(1, 2 * HATCH_STEPS):
        reach = side * step / HATCH_STEPS
        low, high = max(0.0, reach - side), min(side, reach)
        ends.append((x + low, y + high, x + high, y + low))
    scene.add(Lines(tuple(ends), "hatch"))
