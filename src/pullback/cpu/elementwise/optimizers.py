"""Optimizer steps in place on a parameter and its state, by PyTorch's formulas (reference/elementwise.py has them in full)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.elementwise.common import flat_plan
from pullback.cpu.elementwise.records import AdamStep, Flat, SgdStep
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, check_writeable, in_order, order_of
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.words import float_word
from pullback.rules import Array

RECORDS: dict[str, tuple[type[Flat], int]] = {  # and how many times the parameter's bytes are moved
    "sgd": (SgdStep, 3),
    "sgd_momentum": (SgdStep, 5),
    "sgd_nesterov": (SgdStep, 5),
    "adam": (AdamStep, 7),
}


@planned
def _plan(kernel: str, dtype: np.dtype[Any], count: int) -> Plan:
    return flat_plan("optimizers", kernel, RECORDS[kernel][0], dtype, count, RECORDS[kernel][1])


def _step(kernel: str, p: Array, g: Array, states: dict[str, Array], numbers: dict[str, float], **more: int) -> None:
    check_alike(kernel, p, g, *states.values())
    check_writeable(kernel, p, *states.values())
    order = order_of(p)
    if order is None or any(order_of(state) != order for state in states.values()):
        raise ValueError(
            f"{kernel}: a parameter and its state are changed in place, and must lie in memory without gaps and alike"
        )
    if not p.size:
        return
    gradient = in_order(g, order)
    for name, array in states.items():
        more[name] = address_of(array)
    for name, number in numbers.items():
        more[name] = float_word(number)  # not in the plan: rates change from step to step
    _plan(kernel, p.dtype, p.size).run(p=address_of(p), g=address_of(gradient), **more)


def sgd_step(
    p: Array, g: Array, v: Array | None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, first: bool = False, g_scale: float = 1.0,
) -> None:  # fmt: skip
    """One step of stochastic gradient descent; v is not needed without momentum, and is set, not read, at the first step."""
    numbers = {"g_scale": g_scale, "lr": lr, "momentum": momentum, "taken": 1.0 - dampening, "weight_decay": weight_decay}
    if not momentum:
        _step("sgd", p, g, {}, numbers, v=0, first=0)
    elif v is None:
        raise ValueError("sgd_step: momentum needs v, an array like the parameter")
    else:
        _step("sgd_nesterov" if nesterov else "sgd_momentum", p, g, {"v": v}, numbers, first=int(first))


def adam_step(
    p: Array, g: Array, m: Array, v: Array, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
    decoupled: bool, step: int, g_scale: float = 1.0,
) -> None:  # fmt: skip
    """One step of Adam, or with `decoupled` of AdamW; step counts from 1."""
    if step < 1:
        raise ValueError(f"adam_step: step counts from 1, and is {step}")
    numbers = {
        "g_scale": g_scale, "beta1_rest": 1.0 - beta1, "beta2": beta2, "beta2_rest": 1.0 - beta2,
        "weight_decay": 0.0 if decoupled else weight_decay, "shrink": 1.0 - lr * weight_decay if decoupled else 1.0,
        "step_size": lr / (1.0 - beta1**step), "root": (1.0 - beta2**step) ** -0.5, "eps": eps,
    }  # fmt: skip
    _step("adam", p, g, {"m": m, "v": v}, numbers)
