"""A scene as a PNG file, by matplotlib: the same shapes, in twice as many pixels as the SVG has units."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.pictures.scene import Lines, Scene, Text
from pullback.pictures.theme import colours

DOTS_PER_INCH = 100
SCALE = 2.0
POINT = SCALE * 72 / DOTS_PER_INCH  # of type and of lines, for one unit


def write_png(scene: Scene, path: Path, theme: str) -> None:
    try:
        import_module("matplotlib")
        figures, patches, collections = (import_module(f"matplotlib.{part}") for part in ("figure", "patches", "collections"))
    except ImportError as error:
        if error.name != "matplotlib":
            raise
        raise ImportError(
            "a .png picture needs matplotlib: pip install matplotlib, or save it as .svg", name="matplotlib"
        ) from None
    shades = colours("light" if theme == "auto" else theme)
    inches = (scene.width * SCALE / DOTS_PER_INCH, scene.height * SCALE / DOTS_PER_INCH)
    figure = figures.Figure(figsize=inches, dpi=DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for order, shape in enumerate(scene.shapes):
        if isinstance(shape, Text):
            family = "DejaVu Sans Mono" if shape.code else "DejaVu Sans"  # which matplotlib brings itself
            axes.text(
                shape.x, shape.baseline, shape.text, fontsize=shape.size * POINT * 0.92, color=shades[shape.fill], va="baseline",
                ha="left" if shape.start else "center", family=family,
                weight="bold" if shape.bold else "normal", zorder=order, parse_math=False,
            )  # fmt: skip
        elif isinstance(shape, Lines):
            pairs = [((x1, y1), (x2, y2)) for x1, y1, x2, y2 in shape.ends]
            style = {"colors": shades[shape.stroke], "linewidths": shape.stroke_width * POINT, "zorder": order}
            axes.add_collection(collections.LineCollection(pairs, **style))
        else:
            axes.add_patch(_patch(patches, shape, shades, order))
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)


def _patch(patches: Any, shape: Any, shades: Any, order: int) -> Any:
    style = {
        "facecolor": shades[shape.fill] if shape.fill else "none",
        "edgecolor": shades[shape.stroke] if shape.stroke else "none",
        "linewidth": shape.stroke_width * POINT if shape.stroke else 0,
        "linestyle": (0, (3, 2)) if shape.dashed else "solid",
        "zorder": order,
    }
    if not shape.radius:
        return patches.Rectangle((shape.x, shape.y), shape.width, shape.height, **style)
    box = f"round,pad=0,rounding_size={shape.radius}"
    return patches.FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, boxstyle=box, **style)
