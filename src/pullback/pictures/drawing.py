"""A drawing: one scene and one text picture, in the forms that files, notebooks and terminals want."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from pullback.ops.arguments import one_of
from pullback.pictures.files import save_scene
from pullback.pictures.inputs import as_outline
from pullback.pictures.layout import make_scene, outlined_windows
from pullback.pictures.panels import Panel, make_panels
from pullback.pictures.problem import DrawnProblem
from pullback.pictures.scene import Scene
from pullback.pictures.svg import svg_text
from pullback.pictures.text import TextLine, make_text
from pullback.pictures.theme import THEMES


@dataclass(frozen=True, repr=False)
class Drawing:
    """What `draw` gives: `.svg`, `.save(path)`, `str()`; `.problem` has the arrays, `.panels` what stands in the cells."""

    problem: DrawnProblem
    panels: dict[str, Panel]
    scene: Scene
    lines: list[TextLine]
    theme: str

    @property
    def svg(self) -> str:
        return svg_text(self.scene, self.theme)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a .svg file, or with matplotlib to a .png file, where "auto" is light."""
        save_scene(self.scene, path, self.theme)

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines)

    def __repr__(self) -> str:
        return f"<Drawing of {self.problem.call}>"


def make_drawing(problem: DrawnProblem, *, outline: Any = "auto", by: str = "windows", theme: str = "auto") -> Drawing:
    one_of("draw", "theme", theme, THEMES)
    one_of("draw", "by", by, ("windows", "phases"))
    if by == "phases" and problem.op != "conv":
        raise ValueError(
            f"draw: by='phases' shows which weights reach which cells, and {problem.op} has no weights; use op 'conv'"
        )
    panels = make_panels(problem, by)
    outlined = outlined_windows(problem, as_outline(outline, problem.window.output_size), by)
    scene, lines = make_scene(problem, panels, outlined, by), make_text(problem, panels, outlined, by)
    return Drawing(problem, panels, scene, lines, theme)
