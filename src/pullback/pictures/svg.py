"""A scene as SVG text: every shape by its role, the colours in one style sheet, which may follow the reader's theme."""

from __future__ import annotations

import zlib
from xml.sax.saxutils import escape, quoteattr

from pullback.pictures.scene import Lines, Rectangle, Scene, Text
from pullback.pictures.theme import colours

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',Arial,sans-serif"
CODE = "ui-monospace,'SFMono-Regular',Menlo,Consolas,'DejaVu Sans Mono',monospace"


def svg_text(scene: Scene, theme: str) -> str:
    shapes = [_shape(shape) for shape in scene.shapes]
    # Style sheets hold for a whole page: each picture's for that picture alone, by a name that its contents give it.
    name = f"pullback-{zlib.crc32(''.join((theme, *shapes)).encode()):08x}"
    size = f'width="{_number(scene.width)}" height="{_number(scene.height)}"'
    view = f'viewBox="0 0 {_number(scene.width)} {_number(scene.height)}"'
    title, description = escape(scene.title), escape(scene.description)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" {size} {view} role="img" style="max-width:100%;height:auto">',
            f"<title>{title}</title>",
            f"<desc>{description}</desc>",
            f"<style>{_style(name, scene, theme)}</style>",
            *shapes,
            "</svg>\n",
        ]
    )


def _style(name: str, scene: Scene, theme: str) -> str:
    used = sorted(
        {("fill", s.fill) for s in scene.shapes if not isinstance(s, Lines) and s.fill}
        | {("stroke", s.stroke) for s in scene.shapes if not isinstance(s, Text) and s.stroke}
    )

    def rules(shade: str) -> str:
        return "".join(f"#{name} .{kind[0]}-{role}{{{kind}:{colours(shade)[role]}}}" for kind, role in used)

    faces = f"#{name} text{{font-family:{SANS};text-anchor:middle}}#{name} .code{{font-family:{CODE}}}"
    faces += f"#{name} .bold{{font-weight:700}}#{name} .start{{text-anchor:start}}"
    if theme == "auto":
        return f"{faces}{rules('light')}@media (prefers-color-scheme: dark){{{rules('dark')}}}"
    return faces + rules(theme)


def _shape(shape: Rectangle | Lines | Text) -> str:
    if isinstance(shape, Text):
        classes = " ".join([f"f-{shape.fill}", *(name for name in ("bold", "code", "start") if getattr(shape, name))])
        where = f'x="{_number(shape.x)}" y="{_number(shape.baseline)}" font-size="{_number(shape.size)}"'
        return f'<text {where} class="{classes}">{escape(shape.text)}</text>'
    if isinstance(shape, Lines):
        path = "".join("M{} {}L{} {}".format(*map(_number, ends)) for ends in shape.ends)
        return f'<path d="{path}" class="s-{shape.stroke}" stroke-width="{_number(shape.stroke_width)}"/>'
    names = " ".join(([f"f-{shape.fill}"] if shape.fill else []) + ([f"s-{shape.stroke}"] if shape.stroke else []))
    box = " ".join(f'{key}="{_number(getattr(shape, key))}"' for key in ("x", "y", "width", "height"))
    extras = "" if shape.fill else ' fill="none"'
    if shape.stroke:
        extras += f' stroke-width="{_number(shape.stroke_width)}"'
    if shape.radius:
        extras += f' rx="{_number(shape.radius)}"'
    if shape.dashed:
        extras += ' stroke-dasharray="5 4"'
    return f"<rect {box} class={quoteattr(names)}{extras}/>"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
