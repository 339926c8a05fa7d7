"""The gallery: named examples as commands, one sentence each; their pictures (`write_gallery`) and the page that shows them.

`python -m pullback.pictures.gallery` writes docs/gallery.md and the pictures under docs/gallery/.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from pullback.pictures import draw
from pullback.pictures.drawing import Drawing
from pullback.pictures.options import add_options, draw_keywords

OVERLAPPED = '"1,6,2,3,0; 4,2,0,5,1; 3,0,8,2,7; 7,1,4,6,2; 9,5,3,1,4"'
TIED = '"3,1,2,2; 1,3,2,2; 5,5,4,1; 0,5,1,4"'
NOT_A_NUMBER = '"1,nan,2,7; 3,4,nan,nan; 5,2,0,1; 1,8,6,3"'


INTRODUCTION = """# Gallery

How gradients flow through windows. Each picture is drawn by the library itself, with the command below it, and shows what its ops
compute. A letter and a colour mark a window, its output, and the cells that its gradient reaches.

In Python it is `pb.draw("max_pool", (4, 4), 2)`, which a notebook shows as a picture and `print` as text. What else can be drawn:
`pullback draw --help`.
"""


@dataclass(frozen=True)
class Example:
    name: str
    title: str
    sentence: str
    arguments: str  # of `pullback draw`

    @property
    def command(self) -> str:
        return f"pullback draw {self.arguments} -o {self.name}.svg"

    def draw(self, theme: str) -> Drawing:
        parser = argparse.ArgumentParser()
        add_options(parser)
        options = parser.parse_args([*shlex.split(self.arguments), "--theme", theme])
        return draw(**draw_keywords(options))


EXAMPLES = (
    Example(
        "max-pool",
        "Max-pool",
        "Windows side by side: the gradient of each output goes back to the one cell that its maximum came from.",
        'max_pool --input 4x4 --window 2 --dy "1,2;3,4" --seed 26',
    ),
    Example(
        "overlap",
        "Windows that overlap",
        "A stride below the window's size: a cell may win several windows, and then gets the gradients of all of them.",
        f'max_pool --input {OVERLAPPED} --window 3 --stride 2 --dy "1,2;3,4"',
    ),
    Example(
        "stride",
        "A stride beyond the window",
        "Cells between the windows are never read: whatever they hold, their gradient is 0.",
        "max_pool --input 5x5 --window 2 --stride 3 --seed 11",
    ),
    Example(
        "dilation",
        "Dilation",
        "The taps of a window lie two cells apart; the cells between are skipped, and get no gradient.",
        "max_pool --input 5x5 --window 2 --stride 3 --dilation 2 --padding 0:1x0:1 --seed 3",
    ),
    Example(
        "padding-same",
        'Padding "same"',
        "As many outputs as there are cells, divided by the stride; the odd row and column of padding come at the end.",
        "max_pool --input 4x4 --window 3 --stride 2 --padding same --seed 5",
    ),
    Example(
        "ties-first",
        "Ties: the first wins",
        "Of equal cells the first in reading order wins, and gets the whole gradient.",
        f"max_pool --input {TIED} --window 2 --ties first",
    ),
    Example(
        "ties-last",
        "Ties: the last wins",
        "The same cells under the other rule: equal outputs, another gradient.",
        f"max_pool --input {TIED} --window 2 --ties last",
    ),
    Example(
        "nan-propagate",
        "NaN wins",
        "A NaN wins its window, the first one if there are more: the output is NaN, and the gradient goes to it.",
        f"max_pool --input {NOT_A_NUMBER} --window 2 --nan propagate",
    ),
    Example(
        "nan-ignore",
        "NaN is ignored",
        "Under the other rule a NaN never wins, and gets no gradient.",
        f"max_pool --input {NOT_A_NUMBER} --window 2 --nan ignore",
    ),
    Example(
        "average",
        "Average: padding does not count",
        "The divisor of a window is the number of its cells inside the input: 4 in a corner, 6 at an edge, 9 inside.",
        "avg_pool --input 4x4 --window 3 --stride 2 --padding 1:0x1:0",
    ),
    Example(
        "average-padded",
        "Average: padding counts",
        "With the padding counted every divisor is 9, so what goes to the padding is lost to the cells.",
        "avg_pool --input 4x4 --window 3 --stride 2 --padding 1:0x1:0 --count-include-pad",
    ),
    Example(
        "average-divisor",
        "Average: a divisor of your own",
        "With divisor 1 it is the sum of each window, and the gradient of a cell counts the windows that read it.",
        "avg_pool --input 5x5 --window 3 --stride 2 --divisor 1",
    ),
    Example(
        "ceil",
        "Rounding up",
        "Five cells hold two and a half windows of two: rounded up they are three, and the last reaches past the input.",
        "avg_pool --input 5x5 --window 2 --rounding ceil --seed 6",
    ),
    Example(
        "convolution",
        "Convolution and its two gradients",
        "dx: each dy spread over its window by the weights. dw: for each weight the cells that it met, times their dy.",
        'conv --input 4x4 --filter "1,2;0,-1" --dy "1,0,2;0,1,0;3,0,1" --seed 7 --outline 0,2',
    ),
    Example(
        "convolution-phases",
        "A strided convolution's input gradient",
        "With stride 2 the cells fall into four phases, each reached by weights of its own: four small convolutions.",
        "conv --input 5x5 --window 3 --stride 2 --padding 1 --by phases --seed 1",
    ),
    Example(
        "one-axis",
        "One axis",
        "The same in one dimension, each window a bar below the cells that it reads.",
        'max_pool --input "1,4,2,2,5,3,0,5,1" --window 3 --stride 2',
    ),
    Example(
        "one-axis-dilated",
        "One axis, dilated, padded",
        "Dilation 2 and one cell of padding at either end: a mean over the taps that lie inside.",
        "avg_pool --input 8 --window 3 --stride 2 --dilation 2 --padding 1 --seed 8",
    ),
)


def write_gallery(folder: str | PathLike[str]) -> None:
    """Write NAME-light.svg and NAME-dark.svg of every example into a folder, which is made if it is not there."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        for theme in ("light", "dark"):
            example.draw(theme).save(target / f"{example.name}-{theme}.svg")


def page() -> str:
    """The page of the gallery, in Markdown."""
    parts = [INTRODUCTION]
    for example in EXAMPLES:
        pictures = "\n".join(
            f"![{example.title}](gallery/{example.name}-{theme}.svg#only-{theme})" for theme in ("light", "dark")
        )
        parts.append(f"## {example.title}\n\n{example.sentence}\n\n{pictures}\n\n```sh\n{example.command}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    docs = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    (docs / "gallery.md").write_text(page(), encoding="utf-8")
    write_gallery(docs / "gallery")
