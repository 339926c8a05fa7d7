"""The ops as registered with PyTorch, torch.ops.pullback.*: autograd, tracing and vmap rules, for compile and transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from pullback.torch import kernels
from pullback.torch.kernels import KEYWORDS, NAMESPACE, RULES, SHAPES, pairs

_KINDS = {
    "input_shape": "SymInt[]", "filter_shape": "SymInt[]", "output_size": "SymInt[]",
    "window": "int[]", "stride": "int[]", "padding": "int[]",
    "dilation": "int[]", "output_padding": "int[]", "groups": "int", "layout": "str", "rounding": "str",
    "count_include_pad": "bool", "divisor": "int?",
}  # fmt: skip
_library = torch.library.Library(NAMESPACE, "DEF")


def _schema(op: str) -> str:
    arguments = [f"Tensor {name}" for name in RULES[op].arrays]
    arguments += [f"{_KINDS[name]} {name}" for name in KEYWORDS[op]]
    return f"{op}({', '.join(arguments)}) -> {'(Tensor, Tensor)' if op == 'max_pool' else 'Tensor'}"


def call(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    """Call a registered op; padding pairs become a flat list, as schemas have no pairs."""
    given = [[side for pair in keywords[n] for side in pair] if n == "padding" else keywords[n] for n in KEYWORDS[op]]
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace has no names for the sizes in lists of custom ops
        given = [[int(size) for size in value] if n in SHAPES else value for n, value in zip(KEYWORDS[op], given, strict=True)]
    return getattr(torch.ops.pullback, op).default(*tensors, *given)


def _taken_apart(op: str, arguments: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """(tensors, keywords) of a call as PyTorch passes it on."""
    count = len(RULES[op].arrays)
    keywords = dict(zip(KEYWORDS[op], arguments[count:], strict=True))
    if "padding" in keywords:
        keywords["padding"] = pairs(keywords["padding"])
    for name, value in keywords.items():
        if isinstance(value, list):
            keywords[name] = tuple(value)
    return arguments[:count], keywords


def _run(op: str, *arguments: Any) -> Any:
    return kernels.compute(op, *_taken_apart(op, arguments))


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
    for shape in {"input_shape", "output_size"} & given.keys():
        n, *rest = given[shape]
        given[shape] = (n * size, *rest)
    found = function(*folded, **given)
    parts = [part.unflatten(0, (size, part.shape[0] // size)) for part in (found if op == "max_pool" else (found,))]
    return (tuple(parts), (0, 0)) if op == "max_pool" else (parts[0], 0)


def _vmap(op: str, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    tensors, keywords = _taken_apart(op, arguments)

    def again(*given: Any, **keywords: Any) -> Any:
        return call(op, given, keywords)

    return batched(again, op, info.batch_size, in_dims[: len(tensors)], tensors, keywords)


def _legacy_vmap(op: str, *arguments: Any) -> Any:
    """The rule for batched gradients: `is_grads_batched` and the vectorized Jacobians, which PyTorch maps in an older way."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return _one_level_less(op, level, *_taken_apart(op, arguments))


def _one_level_less(op: str, level: int, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    """Take off one level of batches after the other, each by the rule of vmap; a tensor without one has a batch of 1."""
    if level == 0:
        return call(op, tensors, keywords)
    bare = [torch._remove_batch_dim(tensor, level, 1, 0) for tensor in tensors]
    size = max(tensor.shape[0] for tensor in bare)
    dims = [0 if tensor.shape[0] == size else None for tensor in bare]
    given = [tensor if dim == 0 else tensor[0] for tensor, dim in zip(bare, dims, strict=True)]

    def again(*tensors: Any, **keywords: Any) -> Any:
        return _one_level_less(op, level - 1, tensors, keywords)

    found, _ = batched(again, op, size, dims, given, keywords)
    parts = [torch._add_batch_dim(part, 0, level) for part in (found if isinstance(found, tuple) else (found,))]
    return tuple(parts) if op == "max_pool" else parts[0]


def _flops(outputs: int, filter: int, *shapes: Any, out_shape: Any, **_: Any) -> int:
    """Twice the multiplications of a convolution or of its gradients, as PyTorch counts them: those with padding too.

    outputs, filter: which of the arguments has the shape of the convolution's result, and which the filter's; -1: this result.
    """
    given = (*shapes, out_shape)
    images, _channels, *cells = given[outputs]
    return int(2 * images * math.prod(cells) * math.prod(given[filter]))


for _op in RULES:
    _library.define(_schema(_op), tags=(torch.Tag.pt2_compliant_tag,))
    _name = f"{NAMESPACE}::{_op}"
    for _device in ("CPU", "CUDA"):
        _library.impl(_op, partial(_run, _op), _device)
    torch.library.register_fake(_name, partial(_fake, _op), lib=_library)
    torch.library.register_autograd(_name, partial(_backward, _op), setup_context=partial(_setup_context, _op), lib=_library)
    torch.library.register_vmap(_name, partial(_vmap, _op), lib=_library)
    _library.impl(_op, partial(_legacy_vmap, _op), "Batched")

for _op, _place in {"conv": (-1, 1), "conv_grad_input": (0, 1), "conv_grad_filter": (0, -1), "conv_transpose": (0, 1)}.items():
    register_flop_formula(getattr(torch.ops.pullback, _op))(partial(_flops, *_place))
