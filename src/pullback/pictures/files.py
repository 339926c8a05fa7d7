"""A scene as a file: .svg, or with matplotlib .png."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from pullback.pictures.png import write_png
from pullback.pictures.scene import Scene
from pullback.pictures.svg import svg_text

SUFFIXES = (".svg", ".png")


def check_suffix(path: str | PathLike[str]) -> None:
    """A ValueError for a name that is of no picture."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"draw: a picture is a {' or '.join(SUFFIXES)} file, not {Path(path).name!r}")


def save_scene(scene: Scene, path: str | PathLike[str], theme: str) -> None:
    """Write a .svg file, or with matplotlib a .png file, where the theme "auto" is light."""
    check_suffix(path)
    if Path(path).suffix == ".svg":
        Path(path).write_text(svg_text(scene, theme), encoding="utf-8")
    else:
        write_png(scene, Path(path), theme)
