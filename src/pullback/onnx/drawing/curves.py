"""The curves of a training run as a picture: loss, metric and learning rate over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.bench.plot_style import NORMAL, SMALL, THEMES, Theme, dress, new_figure, save_figure

if TYPE_CHECKING:
    from pullback.onnx.train.history import History

PANEL_PX = 300
VALID = "valid_"
PLACE = ("epoch", "step", "rate", "seconds")  # what an epoch of the history has beside figures
TWO_SCALES = 20  # largest loss by smallest: from here on a logarithmic axis


def draw_curves(history: History, path: Path, title: str, theme: str = "light") -> None:
    """Write a .png or .svg file with a panel for the loss, one for each metric and one for the learning rate."""
    style, line = THEMES[theme], import_module("matplotlib.lines").Line2D
    panels = [name for name in figure_names(history.epochs) if name != "loss"]
    colours = {"training data": style.series[0], "held-out data": style.series[1]}
    shown = [*colours][: 2 if any(name.startswith(VALID) for name in history.epochs[-1]) else 1]
    handles = [line([], [], color=colours[name], linewidth=2, marker="o", markersize=4, label=name) for name in shown]
    handles.append(line([], [], color=style.muted, linewidth=0.8, label="each step"))
    figure = new_figure(style, PANEL_PX, title, _footer(history), handles)
    axes = figure.subplots(1, 2 + len(panels), squeeze=False)[0]
    for axis, name in zip(axes, ("loss", *panels), strict=False):
        _figure_over_epochs(axis, style, history, name, colours)
    _rates(axes[-1], style, history)
    save_figure(figure, path)


def figure_names(epochs: Sequence[Mapping[str, float]]) -> list[str]:
    """Loss and metrics, each once, whether of training or of held-out data."""
    return list(dict.fromkeys(name.removeprefix(VALID) for epoch in epochs for name in epoch if name not in PLACE))


def _footer(history: History) -> str:
    last = history.epochs[-1]
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in last.items() if name not in PLACE)
    return f"{len(history.epochs)} epochs, {len(history.losses)} steps; in the last epoch {figures}"


def _steps(history: History, count: int) -> list[float]:
    """Where the steps lie on an axis that counts epochs."""
    return [(number + 1) * len(history.epochs) / count for number in range(count)]


def _panel(axis: Any, style: Theme, title: str, history: History) -> None:
    dress(axis, style)
    axis.set_title(title, fontsize=NORMAL, color=style.ink, weight="bold", loc="left")
    axis.set_xlabel("epoch", fontsize=SMALL, color=style.muted)
    axis.set_xlim(0, len(history.epochs) * 1.03)
    axis.xaxis.set_major_locator(import_module("matplotlib.ticker").MaxNLocator(integer=True, nbins=8))


def _figure_over_epochs(axis: Any, style: Theme, history: History, name: str, colours: dict[str, str]) -> None:
    _panel(axis, style, name.replace("_", " "), history)
    epochs = range(1, len(history.epochs) + 1)
    if name == "loss":
        axis.plot(_steps(history, len(history.losses)), history.losses, color=style.muted, linewidth=0.8, alpha=0.55, zorder=1)
        seen = [loss for loss in history.losses if loss > 0]
        if seen and max(seen) > TWO_SCALES * min(seen):
            axis.set_yscale("log")
    for key, colour in zip((name, VALID + name), colours.values(), strict=True):
        if any(key in epoch for epoch in history.epochs):
            axis.plot(epochs, history[key], color=colour, linewidth=2, marker="o", markersize=4, zorder=3)
    axis.tick_params(which="both", colors=style.muted, labelsize=SMALL)


def _rates(axis: Any, style: Theme, history: History) -> None:
    _panel(axis, style, "learning rate", history)
    axis.plot(_steps(history, len(history.rates)), history.rates, color=style.series[2], linewidth=2)
    axis.set_ylim(bottom=0)
    axis.ticklabel_format(axis="y", style="plain")
