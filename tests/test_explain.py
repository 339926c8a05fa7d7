"""explain(): the kernel named is the one that runs, for every op, and what it prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels import OPS

import pullback as pb
from pullback.registry import current_backend, default_backend, kernels_for

X, F, DY = np.ones((2, 5, 7, 3), np.float32), np.ones((2, 3, 3, 4), np.float32), np.ones((2, 4, 5, 4), np.float32)
POOLED = np.ones((2, 2, 3, 3), np.float32)
CALLS: dict[str, tuple[Any, ...]] = {
    "conv": (X, F),
    "conv_grad_input": (DY, F, X.shape),
    "conv_grad_filter": (DY, X, F.shape),
    "max_pool": (X, 2),
    "max_pool_grad": (POOLED, X, 2),
    "max_pool_grad_from_indices": (POOLED, np.zeros(POOLED.shape, np.int64), X.shape),
    "avg_pool": (X, 2),
    "avg_pool_grad": (POOLED, X.shape, 2),
}


@pytest.mark.parametrize("op", OPS)
def test_explain_names_the_kernel_that_runs(each_backend: str, op: str) -> None:
    explanation = pb.explain(op, *CALLS[op])
    assert [v.kernel for v in explanation.verdicts] == list(kernels_for(op, each_backend))
    chosen = explanation.chosen
    assert chosen is not None
    assert all(v.reason is not None for v in explanation.verdicts[: [v.kernel for v in explanation.verdicts].index(chosen)])
    by_dispatch = getattr(pb, op)(*CALLS[op])
    with pb.kernel(chosen.name):
        assert np.array_equal(getattr(pb, op)(*CALLS[op]), by_dispatch)
    text = str(explanation).splitlines()
    assert text[0].startswith(f"{op} {X.shape} -> ")
    assert text[0].endswith(f"float32 channels_last, backend {each_backend!r}")
    assert [line for line in text if line.startswith("  runs ")] == [f"  runs      {chosen.backend}/{chosen.name}"]
    notes = [line.strip() for line in text if line.startswith(" " * 12)]
    assert notes == ([chosen.note] if chosen.note else [])  # what happens otherwise for some data
    assert len(text) == 1 + len(explanation.verdicts) + len(notes)


@pytest.mark.parametrize("op", OPS)
def test_explain_runs_nothing(op: str) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("explain ran a kernel")

    pb.register_kernel(op, "watched", "fails_when_run", lambda _: None, fail)
    try:
        with pb.backend("watched"):
            chosen = pb.explain(op, *CALLS[op]).chosen
            assert chosen is not None
            assert chosen.name == "fails_when_run"
            with pytest.raises(AssertionError, match="explain ran"):
                getattr(pb, op)(*CALLS[op])
    finally:
        pb.unregister_kernel(op, "watched", "fails_when_run")


def test_the_problem_holds_the_finished_geometry() -> None:
    problem = pb.explain("conv", X, F, stride=(1, 2), padding="same").problem
    assert (problem.input_shape, problem.output_shape, problem.dtype) == (X.shape, (2, 5, 4, 4), np.dtype(np.float32))
    assert problem == pb.explain("conv", X, F, stride=(1, 2), padding="same").problem
    assert hash(problem) == hash(pb.explain("conv", X + 1, F, stride=(1, 2), padding="same").problem)
    assert problem != pb.explain("conv", X, F, stride=(2, 1), padding="same").problem


def test_explain_speaks_of_the_default_backend() -> None:
    assert pb.explain("max_pool", X, 2).backend == current_backend() == default_backend()


@pytest.mark.parametrize("name", ["convolve", "", None, ["conv"], 3])
def test_unknown_op(name: Any) -> None:
    with pytest.raises(ValueError, match=r"explain: unknown op .*; the ops are conv, conv_grad_input"):
        pb.explain(name, X, 2)


def test_explain_checks_arguments_as_the_op_does() -> None:
    for call in (lambda: pb.explain("max_pool", X, 9), lambda: pb.max_pool(X, 9)):
        with pytest.raises(ValueError, match="max_pool: a window of 9"):
            call()
    with pytest.raises(TypeError):
        pb.explain("max_pool", X, 2, colour="red")
