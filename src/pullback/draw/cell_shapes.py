"""One cell of a picture as shapes: its background, its number, the tags of its windows; and the marks of the legend."""

from __future__ import annotations

from pullback.draw.panels import Content, Tag
from pullback.draw.scene import Line, Rectangle, Scene, Text

CELL = 52.0
VALUE = 20.0
TAG = 16.0
TAG_LETTER = 13.0
NOTE = 12.5
PER_LINE, MOST_TAGS = 3, 6
MOST_TINTS = 4
HATCH_STEPS = 4


def paint_cell(scene: Scene, content: Content, x: float, y: float, side: float = CELL) -> None:
    if content.kind == "beyond":
        scene.add(Rectangle(x + 1, y + 1, side - 2, side - 2, stroke="grid", dashed=True))
        return
    bare = content.kind in ("padding", "cropped")
    scene.add(Rectangle(x, y, side, side, fill="pad" if bare else "cell"))
    tints = content.tints if len(content.tints) <= MOST_TINTS else ()
    for number, colour in enumerate(tints):
        scene.add(Rectangle(x + number * side / len(tints), y, side / len(tints), side, fill=f"tint{colour}"))
    if bare:
        _hatch(scene, x, y, side)
    scene.add(Rectangle(x, y, side, side, stroke="grid"))
    if content.value:
        _paint_value(scene, content, x, y)


def _paint_value(scene: Scene, content: Content, x: float, y: float) -> None:
    lines = 0 if not content.tags else 1 if len(content.tags) <= PER_LINE or len(content.tags) > MOST_TAGS else 2
    size = min(VALUE, 2 * CELL / 3 * VALUE / 12 / max(len(content.value), 1)) * (0.85 if lines == 2 else 1)
    centre = (0.5, 0.36, 0.2)[lines] if not content.note else 0.5
    if content.name is not None:
        centre += 0.08 if not content.note else 0.02
        paint_tag(scene, content.name, x + 2, y + 2)
    fill = "ink" if content.strong or content.kind == "cell" else "muted"
    if content.kind == "cell" and content.value == "0" and not content.strong:
        fill = "muted"
    scene.add(Text(x + CELL / 2, y + centre * CELL, content.value, size, fill=fill, bold=content.strong))
    if content.note:
        scene.add(Text(x + CELL / 2, y + CELL - 9, content.note, NOTE))
    if len(content.tags) > MOST_TAGS:
        scene.add(Text(x + CELL / 2, y + CELL - 12, f"{len(content.tags)} win.", NOTE))
        return
    for line in range(lines):
        tags = content.tags[line * PER_LINE : (line + 1) * PER_LINE]
        wide = sum(_tag_width(tag) for tag in tags)
        at = x + (CELL - wide) / 2
        for tag in tags:
            paint_tag(scene, tag, at, y + CELL - (lines - line) * (TAG + 0.5) - 2)
            at += _tag_width(tag)


def _tag_width(tag: Tag) -> float:
    return TAG + 1 + 7 * (len(tag.label) - 1)


def paint_tag(scene: Scene, tag: Tag, x: float, y: float) -> None:
    """A small box with the window's name; hollow for a tie."""
    width = _tag_width(tag) - 1
    fill, letter = ("page", "ink") if tag.hollow else (f"line{tag.colour}", f"on{tag.colour}")
    inset = 1.0 if tag.hollow else 0.0
    stroke = f"line{tag.colour}" if tag.hollow else None
    box = (x + inset, y + inset, width - 2 * inset, TAG - 2 * inset)
    scene.add(Rectangle(*box, fill=fill, stroke=stroke, stroke_width=2, radius=3, dashed=False))
    scene.add(Text(x + width / 2, y + TAG / 2, tag.label, TAG_LETTER, fill=letter, bold=not tag.hollow))


def paint_mark(scene: Scene, mark: str, x: float, y: float) -> None:
    """The mark of a line of the legend."""
    if mark in ("tag", "tied"):
        paint_tag(scene, Tag("a", 0, hollow=mark == "tied"), x + 2, y + 2)
    elif mark == "taps":
        scene.add(Rectangle(x + 3, y + 3, 15, 15, stroke="line0", stroke_width=3, radius=3))
    elif mark:
        paint_cell(scene, Content(kind=mark), x, y, 20)


def _hatch(scene: Scene, x: float, y: float, side: float) -> None:
    """Diagonals from edge to edge."""
    for step in range(1, 2 * HATCH_STEPS):
        reach = side * step / HATCH_STEPS
        low, high = max(0.0, reach - side), min(side, reach)
        if high - low > 0:
            scene.add(Line(x + low, y + high, x + high, y + low, "hatch", 1))
