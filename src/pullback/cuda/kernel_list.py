"""Every kernel of the cuda backend: one table per op, tried from top to bottom. The first that can and pays runs.

Nothing here imports PyTorch or Triton: a kernel's module is imported when it first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from pullback.cuda import reasons
from pullback.cuda.conv import choice as conv
from pullback.cuda.depthwise import choice as depthwise
from pullback.registry import CUDA, Accepts, add_kernel


class Row(NamedTuple):
    """A kernel in the table of an op: where it can run, where it pays, and the function of this package that runs it."""

    name: str
    can: Accepts
    pays: Accepts | None
    run: str


TABLES: dict[str, tuple[Row, ...]] = {
    "max_pool": (
        Row("windows", reasons.max_pool, reasons.small_windows, "pool.forward:max_pool"),
        Row("large_windows", reasons.max_pool, None, "pool.forward:max_pool"),
    ),
    "avg_pool": (
        Row("windows", reasons.not_empty, reasons.small_windows, "pool.forward:avg_pool"),
        Row("large_windows", reasons.not_empty, None, "pool.forward:avg_pool"),
    ),
    "max_pool_grad": (Row("winners", reasons.max_pool, None, "pool.gradient:from_x"),),
    "max_pool_grad_from_winners": (Row("gather", reasons.not_empty, None, "pool.gradient:from_winners"),),
    "max_pool_grad_from_indices": (Row("sorted", reasons.not_empty, None, "library:max_pool_grad_from_indices"),),
    "max_pool_jvp": (Row("take", reasons.max_pool, None, "library:max_pool_jvp"),),
    "max_pool_jvp_from_winners": (Row("take", reasons.not_empty, None, "library:max_pool_jvp_from_winners"),),
    "max_pool_jvp_from_indices": (Row("take", reasons.not_empty, None, "library:max_pool_jvp_from_indices"),),
    "avg_pool_grad": (Row("gather", reasons.not_empty, None, "pool.gradient:avg_pool"),),
    "conv": (
        Row("depthwise", depthwise.can, depthwise.pays, "depthwise.gather:conv"),
        Row("grouped", conv.can_grouped, conv.grouped_pays, "conv.grouped:conv"),
        Row("cudnn", reasons.not_empty, None, "library:conv"),
    ),
    "conv_grad_input": (
        Row("depthwise", depthwise.can, depthwise.pays, "depthwise.gather:conv_grad_input"),
        Row("grouped", conv.can_grouped, conv.grouped_pays, "conv.grouped:conv_grad_input"),
        Row("few_channels", conv.can_few_channels, conv.few_channels_pay, "conv.few_channels:conv_grad_input"),
        Row("cudnn", reasons.not_empty, None, "library:conv_grad_input"),
    ),
    "conv_grad_filter": (
        Row("depthwise", depthwise.can, depthwise.pays, "depthwise.filter_gradient:conv_grad_filter"),
        Row("grouped", conv.can_grouped, conv.grouped_pays, "conv.grouped:conv_grad_filter"),
        Row("few_channels", conv.can_few_channels, conv.few_channels_pay, "conv.few_channels:conv_grad_filter"),
        Row("cudnn", reasons.not_empty, None, "library:conv_grad_filter"),
    ),
}


def function(place: str) -> Callable[..., Any]:
    """The function of a "module:name" in this package, which is imported when it is first called."""
    module, name = place.split(":")
    found: list[Callable[..., Any]] = []

    def run(*arguments: Any) -> Any:
        if not found:
            found.append(getattr(import_module(f"pullback.cuda.{module}"), name))
        return found[0](*arguments)

    return run


def register() -> None:
    """Put all of them on the lists of the registry."""
    for op, table in TABLES.items():
        for row in table:
            add_kernel(op, CUDA, row.name, row.can, function(row.run), pays=row.pays)
