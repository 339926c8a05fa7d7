"""What the tests of the cpu engine share: every pooling op as a call on given data, and Python in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as np_testing  # not at first use: a fork meanwhile would leave the child waiting for the import
import pytest

import pullback as pb
from pullback.cpu.machine_code.levels import host_levels

TESTS = Path(__file__).parent


def skip_unless_it_runs(level: str) -> None:
    if level not in {known.name for known in host_levels()}:
        pytest.skip(f"this CPU cannot run code of the level {level}")


LAYOUTS = ("channels_last", "channels_first")

Answer = tuple[np.ndarray, ...]
Calls = dict[str, Callable[[], Answer]]


def as_tuple(result: Any) -> Answer:
    return result if isinstance(result, tuple) else (result,)


def shaped(layout: str, batch: int, channels: int, *sizes: int) -> tuple[int, ...]:
    return (batch, *sizes, channels) if layout == "channels_last" else (batch, channels, *sizes)


def pool_arguments(x: np.ndarray, dy_seed: int, window: Any, **keywords: Any) -> dict[str, tuple[str, tuple, dict[str, Any]]]:
    """(op, arguments, keywords) of every pooling op on one input, under a name for each form of the result."""
    with pb.backend("reference"):
        y, indices = pb.max_pool(x, window, **keywords, return_indices=True)
        winners = pb.max_pool(x, window, **keywords, return_winners=True)[1]
    dy = np.random.default_rng(dy_seed).standard_normal(y.shape).astype(x.dtype)
    shape, layout = x.shape, {"layout": keywords["layout"]}
    return {
        "max_pool": ("max_pool", (x, window), keywords),
        "max_pool with indices": ("max_pool", (x, window), {**keywords, "return_indices": True}),
        "max_pool with winners": ("max_pool", (x, window), {**keywords, "return_winners": True}),
        "max_pool_grad": ("max_pool_grad", (dy, x, window), keywords),
        "max_pool_grad_from_winners": ("max_pool_grad_from_winners", (dy, winners, shape, window), keywords),
        "max_pool_grad_from_indices": ("max_pool_grad_from_indices", (dy, indices, shape), layout),
        "avg_pool": ("avg_pool", (x, window), keywords),
        "avg_pool_grad": ("avg_pool_grad", (dy, shape, window), keywords),
    }


def pool_calls(x: np.ndarray, window: Any, **keywords: Any) -> Calls:
    """Every pooling op on one input, as functions without arguments."""

    def bind(op: str, arguments: tuple, options: dict[str, Any]) -> Callable[[], Answer]:
        return lambda: as_tuple(getattr(pb, op)(*arguments, **options))

    return {name: bind(*call) for name, call in pool_arguments(x, 1, window, **keywords).items()}


def reals(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bits(answer: Answer) -> list[bytes]:
    return [array.tobytes() for array in answer]


def assert_close(found: Answer, expected: Answer) -> None:
    """Maxima, winners and indices alike; float32 sums within their rounding."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind in "iu":
            np_testing.assert_array_equal(a, b)
        else:
            relative = 1e-6 if a.dtype.itemsize >= 4 else 2e-3
            scale = float(np.abs(b.astype(np.float64)).max(initial=0.0))
            np_testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=relative, atol=relative * scale)


def start_python(code: str, *arguments: str, warnings: str = "error", **environment: str) -> subprocess.Popen[str]:
    """Python running `code` in a process of its own, with this folder importable and warnings treated as said."""
    inherited = environment.pop("PYTHONPATH", None) or os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, [str(TESTS), inherited]))
    return subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Its output, once it has ended well and silently; a process that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    assert err == "", err
    return out.strip()


def run_python(code: str, *arguments: str, timeout: float = 120, **keywords: str) -> str:
    return finish(start_python(code, *arguments, **keywords), timeout)


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of this folder in a process of its own, however it ends."""
    command = [sys.executable, str(TESTS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def guarded_calls(script: str, *arguments: str) -> dict[str, int]:
    """How many calls of each kernel a guarded script has made, once it has ended well."""
    result = run_script(script, *arguments)
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stderr[-3000:]}"
    seen: dict[str, int] = json.loads(result.stdout)
    return seen
