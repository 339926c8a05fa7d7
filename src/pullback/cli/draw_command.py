"""`pullback draw`: a picture of one pooling or convolution and its gradients, in the terminal or as a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli.console import HAS_RICH
from pullback.pictures import draw
from pullback.pictures.options import EXAMPLES, add_options, draw_keywords

if TYPE_CHECKING:
    from pullback.pictures.drawing import Drawing


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "draw",
        help="a picture of one pooling or convolution: which cells win, and where the gradients go",
        description="Draws one op over one image of one channel: its windows, what wins or counts, and the gradients.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="a .svg or .png file; without it, text is printed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        drawing = draw(**draw_keywords(options))
        if options.output is not None:
            drawing.save(options.output)
            return 0
    except (ValueError, TypeError, ImportError, MemoryError) as error:
        print(f"pullback draw: {str(error).removeprefix('draw: ')}", file=sys.stderr)
        return 2
    _print(drawing)
    return 0


def _print(drawing: Drawing) -> None:
    """In colours where rich is there to say what the terminal can show."""
    if not (HAS_RICH and sys.stdout.isatty()):
        print(drawing)
        return
    from rich.console import Console
    from rich.text import Text

    from pullback.pictures.theme import COLOURS, colours

    console = Console()
    styles = [f"{colours('dark')[f'on{number}']} on {colours('dark')[f'line{number}']}" for number in range(COLOURS)]
    with console.capture() as captured:
        for line in drawing.lines:
            text = Text()
            for piece, colour in line:
                text.append(piece, None if colour is None else styles[colour])
            console.print(text, no_wrap=True, crop=False, overflow="ignore", highlight=False)
    print(captured.get(), end="")  # ours: rich has an answer of its own to a closed pipe
