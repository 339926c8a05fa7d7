"""Every cpu kernel by its own name on random problems: right on all that it says it can run, whether or not it pays there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.engine.machine import machine
from pullback.ops.explain import PREPARE
from pullback.registry import kernels_for

PROBLEMS = 150
CONVS = ("conv", "conv_grad_input", "conv_grad_filter")
MAXIMA = ("max_pool", "max_pool_grad", "max_pool_grad_from_winners", "max_pool_grad_from_indices", "max_pool_jvp")
MEANS = ("avg_pool", "avg_pool_grad")
Call = tuple[tuple[Any, ...], dict[str, Any]]


def geometry(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Sizes, window and keywords: odd sizes, windows as large as their image, strides beyond windows, crops."""
    rank = rng.choice([1, 2, 2, 3])
    size = tuple(rng.randint(1, 21 if rank < 3 else 7) for _ in range(rank))
    if rng.random() < 0.15:  # what kernels of their own are for: the whole image, and one cell
        return size, rng.choice([size, (1,) * rank]), {"stride": rng.choice([1, 2])}
    window = tuple(rng.choice([1, 2, 3, 3, 5, n]) for n in size)
    steps = [tuple(rng.choice(choices) for _ in range(rank)) for choices in ((1, 1, 2, 3, 5), (1, 1, 2, 3))]
    stride, dilation = ((1,) * rank if rng.random() < 0.4 else step for step in steps)
    crop = rng.random() < 0.2
    pads = tuple((rng.randint(-2 if crop else 0, 4), rng.randint(-2 if crop else 0, 4)) for _ in range(rank))
    padding: Any = pads if crop else rng.choice(["valid", "same", "same_lower", pads])
    rounding = "floor" if crop else rng.choice(["floor", "ceil", "round"])
    return size, window, {"stride": stride, "dilation": dilation, "padding": padding, "rounding": rounding}


ELSEWHERE = ("crop", "pairs")  # tested by test_crop.py, and with bfloat16 by conv/test_pairs.py


def whole_numbers(rng: random.Random, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, shape).astype(dtype)


def conv_call(op: str, rng: random.Random, dtype: str) -> Call:
    size, window, keywords = geometry(rng)
    last, groups = rng.random() < 0.5, rng.choice([1, 1, 2, 5, 16])
    each, outs = (1, 1) if groups > 4 and rng.random() < 0.6 else (rng.choice([1, 2, 3, 17]), rng.choice([1, 3, 8, 20]))
    if rng.random() < 0.15:  # the few windows that `slide` and `slide_cells` have machine code for
        side, size, last, each, outs = rng.choice([3, 5]), (rng.randint(1, 9), rng.randint(1, 40)), rng.random() < 0.5, 1, 1
        groups = 20 if last else 5
        window, keywords = (side, side), {"stride": rng.choice([1, 2]), "padding": rng.randint(0, 4)}
    batch, c_in, c_out = rng.choice([1, 2]), groups * each, groups * outs
    x = whole_numbers(rng, (batch, *size, c_in) if last else (batch, c_in, *size), dtype)
    f = whole_numbers(rng, (*window, each, c_out) if last else (c_out, each, *window), dtype)
    keywords |= {"groups": groups, "layout": "channels_last" if last else "channels_first"}
    dy = whole_numbers(rng, PREPARE["conv"](x, f, **keywords)[0].output_shape, dtype)
    return {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}[op], keywords


def pool_call(op: str, rng: random.Random, dtype: str) -> Call:
    size, window, keywords = geometry(rng)
    last, batch, channels = rng.random() < 0.5, rng.choice([1, 3]), rng.choice([1, 2, 3, 16, 17, 40])
    keywords["layout"] = "channels_last" if last else "channels_first"
    x = whole_numbers(rng, (batch, *size, channels) if last else (batch, channels, *size), dtype)
    dy = whole_numbers(rng, PREPARE["max_pool"](x, window, **keywords)[0].output_shape, dtype)
    if op in MEANS:
        return (x, window) if op == "avg_pool" else (dy, x.shape, window), keywords | {"count_include_pad": rng.random() < 0.5}
    x[whole_numbers(rng, x.shape, dtype) == 3] = np.nan
    rule = {"nan": rng.choice(["propagate", "ignore"])}
    if op == "max_pool":
        wanted = rng.choice([{}, {"return_winners": True}, {"return_indices": True, "storage_order": rng.choice([0, 1])}])
        return (x, window), keywords | rule | wanted | {"ties": rng.choice(["first", "last"])}
    with pb.backend("reference"):
        winners = pb.max_pool(x, window, return_winners=True, **keywords, **rule)[1]
        indices = pb.max_pool(x, window, return_indices=True, **keywords, **rule)[1]
    if op == "max_pool_grad_from_indices":
        return (dy, indices, x.shape), {"layout": keywords["layout"]}
    arguments = {
        "max_pool_grad": (dy, x, window), "max_pool_jvp": (whole_numbers(rng, x.shape, dtype), x, window),
        "max_pool_grad_from_winners": (dy, winners, x.shape, window),
    }  # fmt: skip
    return arguments[op], keywords | rule


def random_calls(op: str, dtype: str) -> Iterator[Call]:
    rng, found = random.Random(f"{op} {dtype}"), 0
    while found < PROBLEMS:
        try:
            call = (conv_call if op in CONVS else pool_call)(op, rng, dtype)
        except ValueError:  # the window does not fit
            continue
        found += 1
        yield call


@pytest.mark.parametrize("op", [*CONVS, *MAXIMA, *MEANS])
def test_kernels_are_right_on_all_they_can_run(op: str) -> None:
    own = [kernel for kernel in kernels_for(op, "cpu") if kernel.backend == "cpu" and kernel.name not in ELSEWHERE]
    ran, slower = dict.fromkeys([kernel.name for kernel in own], 0), 0
    for arguments, keywords in random_calls(op, "float32"):
        with pb.backend("reference"):
            expected = getattr(pb, op)(*arguments, **keywords)
        problem = pb.explain(op, *arguments, **keywords).problem
        for kernel in own:
            verdict = kernel.verdict(problem)
            with pb.backend("cpu"), pb.kernel(kernel.name):
                if verdict.cannot is not None:
                    with pytest.raises(pb.KernelError):
                        getattr(pb, op)(*arguments, **keywords)
                    continue
                found = getattr(pb, op)(*arguments, **keywords)
            ran[kernel.name] += 1
            slower += verdict.loses is not None
            for a, b in zip(*(part if isinstance(part, tuple) else (part,) for part in (found, expected)), strict=True):
                told = f"{kernel.name} {[np.shape(each) for each in arguments]} {keywords}"
                if kernel.error or op in MEANS:
                    bound = (kernel.relative_error(np.dtype("float32")) or 1e-6) * float(np.abs(b).max(initial=1))
                    np.testing.assert_allclose(a, b, rtol=1e-6, atol=bound, err_msg=told)
                else:
                    np.testing.assert_array_equal(a, b, told)
    for name in () if machine().masks_memory else ("slide", "flat"):  # which read and write under masks
        assert ran.pop(name, 0) == 0
    assert min(ran.values()) >= 2, ran
    assert slower or op in ("max_pool_grad_from_indices", "max_pool_jvp"), "every kernel paid wherever it ran"
