"""The arguments of `pullback draw` in words, and what they mean for `draw`: the gallery is written in them too."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np

from pullback.pictures.inputs import OPS
from pullback.pictures.theme import THEMES
from pullback.rules import PUBLIC_NAN_RULES, TIES
from pullback.window import PADDING_NAMES, ROUNDINGS

EXAMPLES = """examples:
  pullback draw max_pool --input 6x6 --window 3 --stride 2
      where each maximum comes from, and where its gradient goes back to; printed to the terminal
  pullback draw max_pool --input 6x6 --window 3 --stride 2 -o picture.svg
      the same as a picture; .png needs matplotlib
  pullback draw max_pool --input "3,3,1,2; 0,3,nan,2" --window 2 --ties last --nan ignore
      your own values: commas within a row, semicolons between rows
  pullback draw avg_pool --input 5x5 --window 3 --stride 2 --padding same --outline 0,1
      one window alone, that of the output in row 0, column 1
  pullback draw conv --input 5x5 --filter "1,0; 0,-1" --dy "1,2,3,4; 5,6,7,8; 1,2,3,4; 5,6,7,8"
      a convolution and both its gradients
  pullback draw conv --input 7x7 --window 3 --stride 2 --by phases
      which weights reach which cells of a strided convolution's input gradient
  pullback draw avg_pool --input 9 --window 3 --padding 0:2 --count-include-pad
      one axis; padding is low:high, and 2x1 or 0:1x0:2 give each axis its own
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", choices=OPS, help="what to draw, with its gradients")
    parser.add_argument(
        "--input",
        required=True,
        type=_size_or_values,
        metavar="SIZE|VALUES",
        dest="x",
        help="6x6 or 9: random digits; or values",
    )
    parser.add_argument("--window", type=_sizes, metavar="N", help="size of the windows: 3, or 2x3")
    parser.add_argument(
        "--filter",
        type=_values,
        metavar="VALUES",
        help="weights of a convolution (random without): 1,0;0,1, or --filter=-1,0;0,1",
    )
    parser.add_argument("--stride", type=_sizes, metavar="N", help="cells from one window to the next")
    parser.add_argument("--padding", type=_padding, metavar="PADDING", help=f"{', '.join(PADDING_NAMES)}, 1, 2x1 or 0:1x0:2")
    parser.add_argument("--dilation", type=_sizes, metavar="N", help="cells from one tap of a window to the next")
    parser.add_argument("--rounding", choices=ROUNDINGS, help="of the output's size")
    parser.add_argument("--ties", choices=TIES, help="max_pool: which of equal cells wins")
    parser.add_argument("--nan", choices=PUBLIC_NAN_RULES, help="max_pool: whether NaN wins")
    parser.add_argument("--count-include-pad", action="store_true", default=None, help="avg_pool: padding counts as cells")
    parser.add_argument("--divisor", type=int, metavar="N", help="avg_pool: divide by this number")
    parser.add_argument("--dy", type=_values, metavar="VALUES", help="the gradient of the output (ones without)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random digits (default 0)")
    parser.add_argument(
        "--outline", type=_outline, default="auto", metavar="WHICH", help="windows: auto, all, none, or 0,1: one"
    )
    parser.add_argument("--by", choices=("windows", "phases"), default="windows", help="what the colours tell apart")
    parser.add_argument("--theme", choices=THEMES, default="auto", help="auto: an SVG that follows the reader's")


def draw_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `draw` by name."""
    return {name: value for name, value in vars(options).items() if name not in ("output", "run")}


def _sizes(text: str) -> int | tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 3, or 2x3 for one number per axis")
    sizes = tuple(map(int, text.split("x")))
    return sizes if len(sizes) > 1 else sizes[0]


def _size_or_values(text: str) -> Any:
    return _sizes(text) if re.fullmatch(r"\d+(x\d+)*", text) else _values(text)


def _values(text: str) -> Any:
    try:
        rows = [[float(entry) for entry in row.split(",")] for row in text.split(";")]
        return np.array(rows if ";" in text else rows[0])
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a size, such as 6x6, nor rows of values of one length, such as 1,2,3;4,5,6"
        ) from None


def _padding(text: str) -> Any:
    if text in PADDING_NAMES:
        return text
    try:
        pairs = [tuple(map(int, entry.split(":"))) for entry in text.split("x")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(PADDING_NAMES)}, 1, 2x1 or 0:1x0:2") from None
    if text.lstrip("-").isdigit():
        return int(text)
    return tuple(pair if len(pair) > 1 else pair[0] for pair in pairs)


def _outline(text: str) -> Any:
    return tuple(map(int, text.split(","))) if re.fullmatch(r"\d+(,\d+)*", text) else text
