"""A shape on the command line: the options that `pullback bench` and `pullback explain` share, and the case that they make."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from pullback.cli.bench_options import LAYOUTS
from pullback.rules import FLOAT_NAMES

if TYPE_CHECKING:
    from pullback.bench.cases import Case, Kind

KINDS: dict[Kind, str] = {"conv": "a convolution and its gradients", "pool": "max and average pooling and their gradients"}
NOTE = """Sizes are joined by x, one for each spatial axis (1, 2 or 3 of them) or one for all: --filter 3x5, --stride 2.
--input is batch x sizes x channels (channels_last); with --layout channels_first it is batch x channels x sizes.
"""


def sizes(text: str) -> tuple[int, ...]:
    """Positive sizes joined by x."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not sizes joined by x, such as 3 or 3x5")
    return tuple(int(part) for part in text.split("x"))


def one_or_each(text: str) -> int | tuple[int, ...]:
    """One number for all axes, or one for each."""
    found = sizes(text)
    return found[0] if len(found) == 1 else found


def padding(text: str) -> Any:
    """A name; one number for all axes; or for each axis a number, or the two of its ends."""
    from pullback.window import PADDING_NAMES

    if text in PADDING_NAMES:
        return text
    if not re.fullmatch(r"-?[0-9]+(:-?[0-9]+)?(x-?[0-9]+(:-?[0-9]+)?)*", text):
        names = ", ".join(PADDING_NAMES)
        raise argparse.ArgumentTypeError(f"{text!r} is neither {names} nor numbers such as 1, 1x2 or 0:1x0:1 (low:high)")
    pads = [tuple(int(end) for end in part.split(":")) for part in text.split("x")]
    return pads[0][0] if len(pads) == 1 and len(pads[0]) == 1 else [(pad[0], pad[-1]) for pad in pads]


def add_shape_options(parser: argparse.ArgumentParser, kind: Kind, inherited: bool = False) -> None:
    """The options of a shape, and what to look at: ops, layouts, dtypes, a kernel. `inherited`: the command above has these too."""
    shape = parser.add_argument_group("the shape")
    shape.add_argument(
        "--input", type=sizes, required=True, metavar="NxHxWxC", help="of x, in the first --layout asked for (channels_last)"
    )
    if kind == "conv":
        shape.add_argument("--filter", type=sizes, required=True, metavar="K", help="taps of the filter: 3 or 3x5")
        shape.add_argument("--out", type=int, required=True, metavar="C", help="output channels")
        shape.add_argument("--groups", type=int, default=1, metavar="G", help="groups of channels (default 1)")
    else:
        shape.add_argument("--window", type=sizes, required=True, metavar="K", help="cells of the window: 2 or 3x5")
    stride = "1" if kind == "conv" else "the window"
    shape.add_argument("--stride", type=one_or_each, metavar="S", help=f"default {stride}")
    shape.add_argument(
        "--padding",
        type=padding,
        default=0,
        metavar="P",
        help="valid, same, same_lower, 1, 1x2, or low:high as 0:1x0:1 (default 0)",
    )
    shape.add_argument("--dilation", type=one_or_each, default=1, metavar="D", help="default 1")
    default: dict[str, Any] = {"default": argparse.SUPPRESS} if inherited else {}
    wanted = parser.add_argument_group("what to look at; options marked + may be repeated")
    wanted.add_argument("--op", action="append", metavar="OP", help="+ only this op (default: all of the family)", **default)
    wanted.add_argument(
        "--layout",
        action="append",
        choices=LAYOUTS,
        help="+ default channels_last; the first also says how --input is read",
        **default,
    )
    wanted.add_argument("--dtype", action="append", choices=FLOAT_NAMES, help="+ default float32", **default)
    wanted.add_argument("--kernel", metavar="NAME", help="our kernel of this name (pullback explain lists them)", **default)


def case_of(kind: Kind, options: argparse.Namespace) -> Case:
    """The case that the options describe; ValueError that names the option that does not fit."""
    from pullback.bench.cases import parse_case
    from pullback.ops.arguments import per_axis

    option = f"--input {'x'.join(map(str, options.input))}"
    if not 3 <= len(options.input) <= 5:
        raise ValueError(f"{option} has {len(options.input)} sizes; it needs batch, channels and 1, 2 or 3 spatial sizes")
    batch, *inner = options.input
    if layouts_of(options)[0] == "channels_last":
        *size, channels = inner
    else:
        channels, *size = inner
    taps = options.filter if kind == "conv" else options.window
    name = "--filter" if kind == "conv" else "--window"
    kernel = per_axis(option, name, taps[0] if len(taps) == 1 else taps, len(size))
    entry = {"batch": batch, "size": size, "padding": options.padding, "dilation": options.dilation}
    if options.stride is not None:
        entry["stride"] = options.stride
    if kind == "conv":
        entry |= {"c_in": channels, "c_out": options.out, "kernel": kernel, "groups": options.groups}
    else:
        entry |= {"channels": channels, "window": kernel}
    return parse_case(kind, entry, option)


def layouts_of(options: argparse.Namespace) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(options.layout or LAYOUTS[:1]))
