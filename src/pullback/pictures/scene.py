"""A picture as a list of shapes, for any writer: rectangles, lines and texts, coloured by role (`theme.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field

LETTER_WIDTH = 0.56  # of a letter, on average, by its size
CODE_WIDTH = 0.61  # of every letter of a typewriter face


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    stroke_width: float = 1.0
    radius: float = 0.0
    dashed: bool = False


@dataclass(frozen=True)
class Lines:
    """Straight lines of one colour, each (x1, y1, x2, y2)."""

    ends: tuple[tuple[float, float, float, float], ...]
    stroke: str
    stroke_width: float = 1.0


@dataclass(frozen=True)
class Text:
    """Text around (x, y), or where `start` is True from x on."""

    x: float
    y: float
    text: str
    size: float
    fill: str = "ink"
    bold: bool = False
    code: bool = False
    start: bool = False

    @property
    def baseline(self) -> float:
        return self.y + 0.35 * self.size


@dataclass
class Scene:
    """Shapes in the order they are painted, and the size of the picture. `description` is what the picture says, in words."""

    title: str
    description: str = ""
    width: float = 0.0
    height: float = 0.0
    shapes: list[Rectangle | Lines | Text] = field(default_factory=list)

    def add(self, *shapes: Rectangle | Lines | Text) -> None:
        self.shapes += shapes

    def paragraph(self, x: float, y: float, words: list[str], size: float, width: float, **style: bool | str) -> float:
        """Words from x on, their first line's top at y, broken where they exceed the width; the height that they take."""
        letter = size * (CODE_WIDTH if style.get("code") else LETTER_WIDTH)
        lines = words[:1]
        for word in words[1:]:
            if (len(lines[-1]) + 1 + len(word)) * letter > width:
                lines.append(word)
            else:
                lines[-1] += f" {word}"
        for number, line in enumerate(lines):
            self.add(Text(x, y + (number + 0.6) * 1.3 * size, line, size, start=True, **style))  # type: ignore[arg-type]
        return len(lines) * 1.3 * size
