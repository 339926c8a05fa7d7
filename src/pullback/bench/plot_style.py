"""How pictures look: two themes with colours that colour-blind readers can tell apart, sizes for a page 880 pixels wide."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

WIDTH_PX = 880
CSS_DPI = 96  # pixels of a page in an inch: a picture of so many inches is shown as large as it was drawn
PNG_DPI = 2 * CSS_DPI  # sharp on screens with two dots a pixel
PX = 72 / CSS_DPI  # matplotlib's points in a pixel
SMALL, NORMAL, LARGE = 11 * PX, 12 * PX, 15 * PX  # text; nothing is smaller than SMALL
TOP_PX, BOTTOM_PX, MARGIN_PX = 54, 30, 8  # for title and legend, for the line below, left of these
MARKERS = {"channels_last": "o", "channels_first": "s"}


@dataclass(frozen=True)
class Theme:
    """Colours. `layouts`: of the two layouts; `series`: of several lines in a panel, each of which also has a marker of its own.

    Blue, orange, green and purple after Okabe and Ito, darkened or lightened until they stand out from the background.
    """

    background: str
    ink: str
    muted: str
    grid: str
    losing: str
    layouts: dict[str, str]
    series: tuple[str, ...]


THEMES = {
    "light": Theme(
        background="#ffffff", ink="#1f2430", muted="#5b6270", grid="#e3e6ec", losing="#f6e3e6",
        layouts={"channels_last": "#0072b2", "channels_first": "#c96a00"},
        series=("#0072b2", "#c96a00", "#00795a", "#a8467f"),
    ),
    "dark": Theme(
        background="#1e2129", ink="#e6e8ee", muted="#a3a9b7", grid="#353a46", losing="#3d2930",
        layouts={"channels_last": "#56b4e9", "channels_first": "#f0a830"},
        series=("#56b4e9", "#f0a830", "#2fc79a", "#e08fbe"),
    ),
}  # fmt: skip


def new_figure(theme: Theme, panels_px: float, title: str, footer: str, handles: list[Any]) -> Any:
    """A figure as wide as a page: title and legend above the room for panels of so many pixels, a line of small print below."""
    height = panels_px + TOP_PX + BOTTOM_PX
    figure = import_module("matplotlib.figure").Figure(
        figsize=(WIDTH_PX / CSS_DPI, height / CSS_DPI), facecolor=theme.background, layout="constrained"
    )
    room = (0.005, BOTTOM_PX / height, 0.99, panels_px / height)
    figure.get_layout_engine().set(rect=room, w_pad=4 / CSS_DPI, h_pad=4 / CSS_DPI)
    left = MARGIN_PX / WIDTH_PX
    figure.text(left, 1 - 8 / height, title, va="top", fontsize=LARGE, color=theme.ink, weight="bold")
    figure.text(left, 8 / height, footer, va="bottom", fontsize=SMALL, color=theme.muted)
    drawn = figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(left, 1 - 28 / height), ncols=len(handles), fontsize=SMALL,
        labelcolor=theme.ink, frameon=False, handletextpad=0.3, columnspacing=1.3, borderaxespad=0, borderpad=0.2, handlelength=1.6,
    )  # fmt: skip
    drawn.set_in_layout(False)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"a plot is a .png or .svg file, not {path.name!r}")
    # Text as text: a tenth of the size. The same run gives the same file.
    with import_module("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "pullback"}):
        stamp = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=PNG_DPI, facecolor=figure.get_facecolor(), metadata=stamp)


def dress(axis: Any, theme: Theme) -> None:
    """A panel in the theme's colours, with a grid behind the data and no frame above and to the right."""
    axis.set_facecolor(theme.background)
    axis.tick_params(colors=theme.muted, labelsize=SMALL, length=3)
    axis.grid(color=theme.grid, linewidth=0.8)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side in ("bottom", "left"))
        spine.set_color(theme.muted)


def marker(theme: Theme, shape: str, colour: str, hollow: bool = False, size: float = 6.5) -> dict[str, Any]:
    """Keywords of a single mark, for a panel as for a legend."""
    face = theme.background if hollow else colour
    return {
        "marker": shape, "color": colour, "markerfacecolor": face, "markersize": size, "linestyle": "none",
        "markeredgecolor": colour if hollow else theme.background, "markeredgewidth": 1.4 if hollow else 0.6,
    }  # fmt: skip
