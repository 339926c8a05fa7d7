"""The ops as registered with PyTorch, torch.ops.pullback.*: autograd, tracing and vmap rules, for compile and transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from pullback.torch import kernels
from pullback.torch.kernels import KEYWORDS, RULES, pairs

NAMESPACE = "pullback"
_KINDS = {
    "input_shape": "SymInt[]", "filter_shape": "SymInt[]", "window": "int[]", "stride": "int[]", "padding": "int[]",
    "dilation": "int[]", "groups": "int", "layout": "str", "rounding": "str", "count_include_pad": "bool",
}  # fmt: skip
_library = torch.library.Library(NAMESPACE, "DEF")


def _schema(op: str) -> str:
    arguments = [f"Tensor {name}" for name in RULES[op].arrays]
    arguments += [f"{_KINDS[name]} {name}" for name in KEYWORDS[op]]
    return f"{op}({', '.join(arguments)}) -> {'(Tensor, Tensor)' if op == 'max_pool' else 'Tensor'}"


def call(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    """Call a registered op; padding pairs become a flat list, as schemas have no pairs."""
    given = [[side for pair in keywords[n] for side in pair] if n == "padding" else keywords[n] for n in KEYWORDS[op]]
    return getattr(torch.ops.pullback, op).default(*tensors, *given)


def _taken_apart(op: str, arguments: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """(tensors, keywords) of a call as PyTorch passes it on."""
    count = len(RULES[op].arrays)
    keywords = dict(zip(KEYWORDS[op], arguments[count:], strict=True))
    keywords["padding"] = pairs(keywords["padding"])
    for name, value in keywords.items():
        if isinstance(value, list):
            keywords[name] = tuple(value)
    return arguments[:count], keywords


def _run(op: str, *arguments: Any) -> Any:
    return kernels.run(op, *_taken_apart(op, arguments))


def _fake(op: str, *arguments: Any) -> Any:
    return kernels.fake(op, *_taken_apart(op, arguments))


def _setup_context(op: str, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    from pullback.torch.autograd import keep

    tensors, keywords = _taken_apart(op, inputs)
    ctx.needs_tensors = ctx.needs_input_grad[: len(tensors)]
    if op == "max_pool":
        ctx.mark_non_differentiable(output[1])
    keep(ctx, op, tensors, output, keywords)


def _backward(op: str, ctx: Any, g: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    from pullback.torch.autograd import OPS, gradients

    return (*gradients(ctx, g, OPS), *(None,) * len(KEYWORDS[op]))


def batched(
    function: Callable[..., Any],
    op: str,
    size: int,
    in_dims: Sequence[Any],
    tensors: Sequence[Any],
    keywords: Mapping[str, Any],
) -> tuple[Any, Any]:
    """An op over a further axis of some tensors, and where that axis lies in the results.

    Batches of images are one larger batch; where a filter or its gradient is batched, one call for each.
    """
    names = RULES[op].arrays
    moved = [tensor if dim is None else tensor.movedim(dim, 0) for tensor, dim in zip(tensors, in_dims, strict=True)]
    filter_batched = any(name == "filter" and dim is not None for name, dim in zip(names, in_dims, strict=True))
    if op == "conv_grad_filter" or filter_batched:
        chosen = [[t if dim is None else t[i] for t, dim in zip(moved, in_dims, strict=True)] for i in range(size)]
        return torch.stack([function(*one, **keywords) for one in chosen]), 0
    folded = []
    for name, tensor, dim in zip(names, moved, in_dims, strict=True):
        whole = tensor.expand(size, *tensor.shape) if dim is None and name != "filter" else tensor
        folded.append(whole if name == "filter" else whole.flatten(0, 1))
    given = dict(keywords)
    if "input_shape" in given:
        n, *rest = given["input_shape"]
        given["input_shape"] = (n * size, *rest)
    found = function(*folded, **given)
    if op == "max_pool":
        return tuple(part.unflatten(0, (size, -1)) for part in found), (0, 0)
    return found.unflatten(0, (size, -1)), 0


def _vmap(op: str, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    tensors, keywords = _taken_apart(op, arguments)

    def again(*given: Any, **keywords: Any) -> Any:
        return call(op, given, keywords)

    return batched(again, op, info.batch_size, in_dims[: len(tensors)], tensors, keywords)


for _op in RULES:
    _library.define(_schema(_op), tags=(torch.Tag.pt2_compliant_tag,))
    _name = f"{NAMESPACE}::{_op}"
    _library.impl(_op, partial(_run, _op), "CPU")
    torch.library.register_fake(_name, partial(_fake, _op), lib=_library)
    torch.library.register_autograd(_name, partial(_backward, _op), setup_context=partial(_setup_context, _op), lib=_library)
    torch.library.register_vmap(_name, partial(_vmap, _op), lib=_library)
