"""The picture of a comparison: two bars for each layer, PyTorch's and ours, cut into its ops; made to be read at 880 pixels."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.torch.comparing.comparison import Comparison, LayerTimes

MOST_LAYERS = 24  # more would be too small to read: the shorter ones are one pair of bars
PIXELS, DPI = 880, 110
THEMES = {
    "light": {"back": "#ffffff", "text": "#1b1f24", "faint": "#6a737d", "grid": "#d8dee4"},
    "dark": {"back": "#0d1117", "text": "#e6edf3", "faint": "#9198a1", "grid": "#30363d"},
}
OPS = ("forward", "input gradient", "filter gradient")
COLOURS = {"pytorch": ("#b1480f", "#dd7230", "#f4a26c"), "ours": ("#0b5a80", "#2788b8", "#7fc1e3")}
NAMES = {"pytorch": "PyTorch", "ours": "pullback"}
_Bars = tuple[str, dict[str, list[float]]]  # a label, and for each side the milliseconds of each op


def draw(comparison: Comparison, path: Path, theme: str = "light") -> None:
    """Draw into a .png or .svg file."""
    if theme not in THEMES:
        raise ValueError(f"plot: theme is {theme!r}; the themes are {', '.join(THEMES)}")
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"plot: a picture is a .png or .svg file, not {path.name!r}")
    try:
        figures = import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise ImportError("plots need matplotlib: pip install 'pullback[bench]'") from None
    colours, bars = THEMES[theme], _bars(comparison)
    height = 1.75 + 0.34 * max(len(bars), 2)
    figure = figures.Figure(figsize=(PIXELS / DPI, height), layout="constrained", facecolor=colours["back"])
    axes = figure.subplots()
    _draw_bars(axes, bars)
    _dress(axes, bars, colours)
    figure.suptitle(_title(comparison), fontsize=10.5, color=colours["text"], x=0.01, ha="left")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False, labelcolor=colours["text"])
    with import_module("matplotlib").rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=DPI, facecolor=colours["back"])


def _bars(comparison: Comparison) -> list[_Bars]:
    """The longest layers in the order of their calls, and the sum of the others."""
    layers = [layer for layer in comparison.layers if layer.ops]
    longest = sorted(layers, key=lambda layer: layer.total("pytorch") or 0.0, reverse=True)
    shown = longest if len(layers) <= MOST_LAYERS else longest[: MOST_LAYERS - 1]
    bars = [(_label(layer), {"ours": [0.0] * len(OPS), **_times(layer)}) for layer in layers if layer in shown]
    others = [_times(layer) for layer in layers if layer not in shown]
    if others:
        # A layer that is left takes the same on either side.
        sums = {side: [sum(ops) for ops in zip(*(t.get(side, t["pytorch"]) for t in others), strict=True)] for side in NAMES}
        bars.append((f"{len(others)} shorter ones", sums))
    return bars


def _label(layer: LayerTimes) -> str:
    name = layer.title if len(layer.title) <= 24 else "…" + layer.title[-23:]
    return f"{name}  {layer.kind}" + ("" if layer.reason is None else "\nleft to PyTorch")


def _times(layer: LayerTimes) -> dict[str, list[float]]:
    """Milliseconds by side and op; of a layer that is left PyTorch's alone."""
    sides = NAMES if layer.reason is None else ("pytorch",)
    return {side: [(layer.ops[op].median(side) or 0.0) if op in layer.ops else 0.0 for op in OPS] for side in sides}


def _draw_bars(axes: Any, bars: list[_Bars]) -> None:
    for offset, side in ((-0.2, "pytorch"), (0.2, "ours")):
        left = [0.0] * len(bars)
        for number, op in enumerate(OPS):
            values = [times[side][number] for _, times in bars]
            places = [place + offset for place in range(len(bars))]
            axes.barh(places, values, 0.36, left, color=COLOURS[side][number], label=f"{NAMES[side]}: {op}")
            left = [start + value for start, value in zip(left, values, strict=True)]


def _dress(axes: Any, bars: list[_Bars], colours: dict[str, str]) -> None:
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=7.5, color=colours["text"])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_facecolor(colours["back"])
    axes.set_xlabel("milliseconds in a step", fontsize=8.5, color=colours["text"])
    axes.tick_params(axis="x", labelsize=8, colors=colours["faint"])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=colours["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _title(comparison: Comparison) -> str:
    theirs, ours = (comparison.step.median(side) or 0.0 for side in NAMES)
    busy = "\nthe machine seemed busy: steps of one side differ a lot" if comparison.busy else ""
    settings = comparison.settings
    return (
        f"A step: PyTorch {theirs:.1f} ms, pullback {ours:.1f} ms ({comparison.gain:.2f} times as fast){busy}\n"
        f"PyTorch {settings['versions']['PyTorch']}, pullback {settings['versions']['pullback']}, threads: {settings['threads']}, "
        f"{settings['cpu']}"
    )
