"""Tests of the cuda backend. Without a GPU its kernels run in Triton's interpreter, on tensors in the CPU's memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb


def _has_triton() -> bool:
    """Whether there is a Triton that our kernels are written for, with PyTorch."""
    if find_spec("triton") is None or find_spec("torch") is None:
        return False
    return tuple(map(int, version("triton").split(".")[:2])) >= (3, 4)


HAS_TRITON = _has_triton()
collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]

Run = Callable[..., Any]
FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """About half of each test's cases run everywhere; `make test-cuda` and `make test-triton` run all."""
    seen: Counter[str] = Counter()
    for item in items:
        if FOLDER in item.path.parents:
            function = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
            if seen[function] * 7 % 11 > 5:
                item.add_marker(pytest.mark.slow)
            seen[function] += 1


@pytest.fixture(autouse=True)
def numbers_as_loop_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter has scalars as arrays of one element, which NumPy no longer takes for an index."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def _prepare(op: str) -> Any:
    from pullback.ops.explain import PREPARE

    return PREPARE[op]


@pytest.fixture
def on_gpu() -> Run:
    """on_gpu("conv", *arrays and numbers, kernel="name", **keywords): the op on the cuda backend, NumPy arrays in and out."""
    import torch

    from pullback.cuda import call

    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim < 3:
            return value
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(np.ascontiguousarray(value).view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(np.ascontiguousarray(value)).to(device)

    def array(found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(map(array, found))
        if found.dtype is torch.bfloat16:
            import ml_dtypes

            return found.contiguous().view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        return found.cpu().numpy()

    def run(op: str, *args: Any, kernel: str | None = None, **keywords: Any) -> Any:
        given = [tensor(value) for value in args]
        if kernel is None:
            return array(call.run(_prepare(op), *given, **keywords))
        with pb.kernel(kernel):
            return array(call.run(_prepare(op), *given, **keywords))

    return run


@pytest.fixture
def reference() -> Run:
    """reference("conv", ...): the same call on the reference backend."""

    def run(op: str, *args: Any, **keywords: Any) -> Any:
        with pb.backend("reference"):
            return getattr(pb, op)(*args, **keywords)

    return run
