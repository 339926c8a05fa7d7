"""The colours of pictures by role, for light and dark backgrounds: a row of window colours that the colour-blind can tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

THEMES = ("auto", "light", "dark")

_PLAIN = {
    "light": {
        "page": "#ffffff", "ink": "#1b1f24", "muted": "#59626d", "grid": "#b9c0c8", "cell": "#fbfcfd", "pad": "#eceff2",
        "hatch": "#a9b2bc",
    },
    "dark": {
        "page": "#15181d", "ink": "#f1f3f5", "muted": "#aab4bf", "grid": "#4c5561", "cell": "#1d2127", "pad": "#262b33",
        "hatch": "#66717e",
    },
}  # fmt: skip
# The colours of Okabe and Ito, which differ for every kind of colour vision; their black, here the ink of the theme, comes last.
_WINDOWS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7")
_NEEDS_WHITE = "#0072b2"  # all the others carry black letters
COLOURS = len(_WINDOWS) + 1
TINT = {"light": 0.30, "dark": 0.42}  # how much of a window's colour is in the background of its cells


@cache
def colours(theme: str) -> Mapping[str, str]:
    """Every role with its colour: the plain ones, and of window colour i its `line`, its `tint`, and `on` for letters over it."""
    plain = _PLAIN[theme]
    roles = dict(plain)
    for number, colour in enumerate((*_WINDOWS, plain["ink"])):
        roles[f"line{number}"] = colour
        roles[f"tint{number}"] = _mixed(colour, plain["cell"], TINT[theme])
        roles[f"on{number}"] = "#ffffff" if colour == _NEEDS_WHITE else plain["page"] if colour == plain["ink"] else "#000000"
    return roles


def _mixed(colour: str, ground: str, share: float) -> str:
    parts = (round(share * a + (1 - share) * b) for a, b in zip(_channels(colour), _channels(ground), strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
