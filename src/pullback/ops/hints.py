"""Hints for the names and the layout that people try first: one line that names the right word."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

from pullback.nearest import nearest
from pullback.settings import QUIET_VARIABLE, environment

Op = TypeVar("Op", bound=Callable[..., Any])

# A distinct object, so that an op knows the layout that was left out from the same name given by its caller.
DEFAULT_LAYOUT = "-last".replace("-", "channels_")

# What other systems call our keywords.
KEYWORDS = {
    "window": "kernel_size kernel_shape ksize pool_size filterSize filter_size size kernel",
    "stride": "strides step window_strides",
    "padding": "pad pads auto_pad",
    "dilation": "dilations dilation_rate rate rhs_dilation",
    "groups": "group feature_group_count num_groups",
    "layout": "data_format dataFormat memory_format channels_last",
    "rounding": "ceil_mode dimRoundingMode",
    "filter": "weight weights w kernel filters W",
    "x": "input inputs X data",
    "dy": "grad_output grad dout dY g",
    "input_shape": "input_size x_shape shape",
    "filter_shape": "weight_shape weight_size filter_size",
    "divisor": "divisor_override",
    "count_include_pad": "include_pad count_include_padding",
    "return_indices": "return_index include_batch_in_index with_indices",
    "indices": "argmax index I",
    "output_size": "output_shape size",
    "bias": "b biases beta B",
    "scale": "gamma weight",
    "mean": "running_mean input_mean",
    "variance": "var running_var input_var",
    "eps": "epsilon variance_epsilon",
}
MEANINGS = {
    "ceil_mode": 'rounding="ceil" is ceil_mode=True',
    "data_format": 'layout is "channels_last" ("NHWC") or "channels_first" ("NCHW")',
    "memory_format": 'layout is "channels_last" ("NHWC") or "channels_first" ("NCHW")',
    "auto_pad": 'padding takes the names "valid", "same" and "same_lower" too',
    "rhs_dilation": "dilation is that of the filter",
}
_OURS = {
    theirs: [ours for ours, names in KEYWORDS.items() if theirs in names.split()]
    for theirs in " ".join(KEYWORDS.values()).split()
}

# Names of functions that are no prefix or plain variation of ours.
FUNCTIONS = {
    "conv_backprop_input": "conv_grad_input",
    "conv_backward": "conv_grad_input and conv_grad_filter",
    "conv_backprop_filter": "conv_grad_filter",
    "conv_input": "conv_grad_input",
    "conv_weight": "conv_grad_filter",
    "convolution": "conv",
    "convolve": "conv",
    "correlate": "conv",
    "deconv": "conv_transpose",
    "depthwise_conv": "conv with groups= the number of channels",
    "max_pool_backward": "max_pool_grad",
    "avg_pool_backward": "avg_pool_grad",
    "average_pool": "avg_pool",
    "mean_pool": "avg_pool",
    "max_pool_with_argmax": "max_pool with return_indices=True",
    "max_pool_with_indices": "max_pool with return_indices=True",
    "batch_normalization": "batch_norm",
    "batch_norm_backward": "batch_norm_grad",
    "value_and_grad": "value_and_grads",
    "set_threads": "set_num_threads",
    "num_threads": "get_num_threads",
    "accelerate": "pullback.torch.accelerate",
}


def with_hints(op: Op) -> Op:
    """The same op, whose calls with a wrong keyword or too many arguments say what the right ones are called."""

    @wraps(op)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return op(*args, **named)
        except TypeError:
            check_names(op, args, named)
            raise

    return cast(Op, call)


def check_names(op: Callable[..., Any], args: Sequence[Any], named: Iterable[str]) -> None:
    """TypeError for a call of an op with a keyword that it has not, or with too many arguments by place."""
    parameters = inspect.signature(op).parameters.values()
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    hint = _hint(op.__name__, places, keywords, len(args), named)
    if hint is not None:
        raise TypeError(f"{op.__name__}: {hint}") from None


def _hint(op: str, places: Sequence[str], keywords: Sequence[str], given: int, named: Iterable[str]) -> str | None:
    """What is wrong with how a call names its arguments; None if nothing is."""
    known = [*places, *keywords]
    for name in named:
        if name not in known:
            return f"there is no {name!r}; {_right_word(op, name, places, keywords)}"
    if given > len(places):
        example = f", for example {op}({', '.join(places)}, {keywords[0]}=...)" if keywords else ""
        return f"{given} arguments by place; only {', '.join(places)} go by place, all others by name{example}"
    return None


def _right_word(op: str, name: str, places: Sequence[str], keywords: Sequence[str]) -> str:
    known = [*places, *keywords]
    if name in MEANINGS and any(ours in known for ours in _OURS[name]):
        return MEANINGS[name]
    for ours in _OURS.get(name, []):
        if ours in known:
            return f"it is called {ours!r} here"
    if "filter" in known and "window" in _OURS.get(name, []):
        return "the window is that of the filter's own shape"
    if name == "bias":
        return "conv has it, and conv_grad_bias is its gradient"
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"{op} takes {', '.join(known)}"


def unknown_name(name: str, public: Sequence[str]) -> NoReturn:
    """AttributeError for a name that the package does not have, with the one that is meant."""
    text = f"module 'pullback' has no attribute {name!r}"
    if not name.startswith("_"):
        meant = _meant(name, public)
        text += f"; the ops take 1, 2 and 3 spatial axes: use {meant}" if _without_rank(name) in public else ""
        text += f"; did you mean {meant}?" if meant and "use" not in text else ""
    raise AttributeError(text, name=name)  # without `obj`, so that Python adds no guess of its own


def _without_rank(name: str) -> str:
    """conv2d, Conv2D, max_pool2d, MaxPool2d as they are called without the number of axes."""
    snake = "".join(f"_{c.lower()}" if c.isupper() and i and name[i - 1].islower() else c.lower() for i, c in enumerate(name))
    for rank in "123":
        snake = snake.replace(f"{rank}d", "").replace(f"{rank}_d", "")
    return snake.replace("maxpool", "max_pool").replace("avgpool", "avg_pool").strip("_")


def _meant(name: str, public: Sequence[str]) -> str | None:
    plain = _without_rank(name)
    if plain in public:
        return f"pullback.{plain}"
    if plain in FUNCTIONS:
        return FUNCTIONS[plain] if FUNCTIONS[plain].startswith("pullback.") else f"pullback.{FUNCTIONS[plain]}"
    near = nearest(plain, public, 0.75)
    return f"pullback.{near}" if near else None


_said_in = -1  # the process that has said it


def hint_at_layout(op: str, name: str, shape: tuple[int, ...]) -> None:
    """Say once, on stderr, that an array in the default layout looks like one of channels_first: square images, (N, C, H, W)."""
    global _said_in
    if len(shape) < 4 or shape[-1] != shape[-2] or shape[1] == shape[2] or shape[-1] < 2:
        return
    if _said_in == os.getpid() or environment(QUIET_VARIABLE) or sys.stderr is None:
        return
    _said_in = os.getpid()
    size = " x ".join(map(str, shape[2:]))
    text = (
        f"pullback: {op} reads {name} of shape {shape} as channels_last, {shape[-1]} channels. If it holds {size} cells of "
        f'{shape[1]} channels, pass layout="channels_first"; any layout= silences this hint.\n'
    )
    with suppress(AttributeError, OSError, ValueError):  # somebody's stand-in for stderr, or closed
        sys.stderr.write(text)
        sys.stderr.flush()
