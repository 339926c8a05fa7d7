"""The picture for a terminal: the same panels in letters, one window in brackets, colours by window."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap

from pullback.pictures.panels import Content, Panel
from pullback.pictures.problem import Cell, DrawnProblem
from pullback.pictures.words import FORWARD, backward_sentence, legend

Piece = tuple[str, int | None]  # a text, and the number of a window's colour
TextLine = list[Piece]
MARKS = {"padding": "░░", "beyond": "··"}
GAP = 4
WIDEST = 110  # of panels side by side
SENTENCE = 88


def make_text(problem: DrawnProblem, panels: Mapping[str, Panel], outlined: list[Cell], by: str) -> list[TextLine]:
    """The lines of the picture: forward above, backward below."""
    bracketed = set(problem.cells(outlined[0])) if outlined else set()
    blocks = {name: _block(panel, bracketed if name in ("x", "dx") else set()) for name, panel in panels.items()}
    lines = [_plain(problem.call), _plain("")]
    for title, sentence, names in (
        ("forward", FORWARD[problem.op], ("x", "w", "y")),
        ("backward", backward_sentence(problem, by), ("dx", "dw", "dy")),
    ):
        lines += [_plain(line) for line in (*wrap(f"{title}: {sentence}", SENTENCE), "")]
        shown = [blocks[name] for name in names if name in blocks]
        beside = _beside(shown)
        if problem.window.rank == 2 and max(map(_length, beside)) <= WIDEST:
            lines += [*beside, []]
        else:
            lines += [line for block in (shown if title == "forward" else shown[::-1]) for line in (*block, [])]
    if outlined:
        lines.append(_plain(f"[ ]  what window {problem.label(outlined[0])} reads"))
    first = problem.label(problem.outputs[0])
    marks = {"tag": first, "tied": f"={first}", **MARKS, "cropped": "( )"}
    for mark, meaning in legend(problem, panels, outlined, by):
        if mark in marks:
            lines.append(_plain(f"{marks[mark]:<4} {meaning}"))
        elif mark == "" and "outlined" not in meaning:
            lines.append(_plain(meaning))
    return lines


def _block(panel: Panel, bracketed: set[Cell]) -> list[TextLine]:
    """A panel: its heading, then a line for each row; the cells of a column have the same width."""
    values = max(len(_value(content)) for content in panel.contents())
    tags = max(sum(len(text) for text, _ in _tags(content)) for content in panel.contents())
    names = max(len(content.name.label) if content.name else 0 for content in panel.contents())
    lines = [_plain(f"{panel.name}  {panel.caption}")]
    for number, row in enumerate(panel.rows):
        line: TextLine = []
        for column, content in enumerate(row):
            place = (number + panel.first[0], column + panel.first[1])
            inside = place in bracketed or place[1:] in bracketed
            left, right = ("[", "]") if inside else ("(", ")") if content.kind == "cropped" else (" ", " ")
            if names:
                name = content.name
                line.append((f"{name.label}:".rjust(names + 1) if name else " " * (names + 1), name.colour if name else None))
            line += [(f"{left}{_value(content):>{values}}{right}", _colour(content)), *_tags(content)]
            line.append((" " * (tags - sum(len(text) for text, _ in _tags(content)) + 1), None))
        lines.append(line)
    return lines


def _value(content: Content) -> str:
    note = f" ({content.note})" if " " in content.note else content.note
    return MARKS.get(content.kind, content.value) + ("" if note.startswith("sum") else note)


def _colour(content: Content) -> int | None:
    return content.tints[0] if len(content.tints) == 1 else None


def _tags(content: Content) -> list[Piece]:
    """The names of windows; a comma between those of more than one letter."""
    after = "," if any(len(tag.label) > 1 for tag in content.tags) else ""
    return [(f"{'=' if tag.hollow else ''}{tag.label}{after}", tag.colour) for tag in content.tags]


def _beside(blocks: list[list[TextLine]]) -> list[TextLine]:
    """Blocks side by side."""
    widths = [max(_length(line) for line in block) for block in blocks]
    lines: list[TextLine] = []
    for number in range(max(len(block) for block in blocks)):
        line: TextLine = []
        for block, width in zip(blocks, widths, strict=True):
            own = block[number] if number < len(block) else []
            line += [*own, (" " * (width - _length(own) + GAP), None)]
        lines.append(line)
    return lines


def _plain(text: str) -> TextLine:
    return [(text, None)]


def _length(line: TextLine) -> int:
    return sum(len(text) for text, _ in line)
