"""TF.js's registry and backends: upstream's messages and side effects, the built-in backends, and the quirks switch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback
from pullback import golden, tfjs
from pullback.registry import current_backend

X = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
POOL = {"filterSize": 2, "strides": 2, "pad": "valid"}


@pytest.fixture
def scratch() -> Iterator[str]:
    """A backend name for one test, forgotten afterwards with its kernels."""
    name = "scratch_backend"
    yield name
    for config in tfjs.get_kernels_for_backend(name):
        tfjs.unregister_kernel(config.kernel_name, name)
    if tfjs.find_backend(name) is not None:
        tfjs.remove_backend(name)
    tfjs.set_backend("cpu")


def echo(*, inputs: Any, attrs: Any, backend: Any = None) -> Any:
    return inputs, attrs, backend


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_builtin_backends_have_every_recorded_kernel(backend: str) -> None:
    recorded = set(golden.names("tfjs")) - {"Gradients", "OpErrors"}
    assert {config.kernel_name for config in tfjs.get_kernels_for_backend(backend)} == recorded | {"Relu"}
    np.testing.assert_array_equal(tfjs.run_kernel("MaxPool", {"x": X}, POOL, backend), [[[[5], [7]], [[13], [15]]]])


def test_every_kernel_is_a_function_of_its_own_name() -> None:
    for config in tfjs.get_kernels_for_backend("cpu"):
        func = getattr(tfjs, config.kernel_func.__name__)
        assert getattr(func, "kernel_func", func) is config.kernel_func  # some are ops as well
        assert func.__name__.replace("_", "") == config.kernel_name.lower()
        assert func.__name__ in tfjs.__all__


@pytest.mark.parametrize("backend", [None, "cpu", "reference"])
def test_kernel_function_called_directly(backend: str | None) -> None:
    result = tfjs.avg_pool(inputs={"x": X}, attrs=POOL, backend=backend)
    np.testing.assert_array_equal(result.reshape(-1), [2.5, 4.5, 10.5, 12.5])


def test_reference_backend_runs_the_reference_kernels() -> None:
    seen = []

    def run(problem: Any, *arrays: Any) -> Any:
        seen.append(current_backend())
        return np.zeros(problem.output_shape, problem.dtype)

    pullback.register_kernel("avg_pool", "watched", "watch", lambda problem: None, run)
    try:
        with pullback.backend("watched"):
            assert not np.any(tfjs.run_kernel("AvgPool", {"x": X}, POOL, "cpu"))
            assert np.any(tfjs.run_kernel("AvgPool", {"x": X}, POOL, "reference"))
    finally:
        pullback.unregister_kernel("avg_pool", "watched", "watch")
    assert seen == ["watched"]


def test_kernel_func_gets_inputs_attrs_and_the_backend(scratch: str) -> None:
    made = object()
    assert tfjs.register_backend(scratch, lambda: made)
    tfjs.register_kernel(tfjs.KernelConfig("Echo", scratch, echo))
    assert tfjs.run_kernel("Echo", {"x": 1}, {"a": 2}, scratch) == ({"x": 1}, {"a": 2}, made)
    tfjs.set_backend(scratch)
    assert tfjs.get_backend() == scratch
    assert tfjs.run_kernel("Echo", {}) == ({}, {}, made)


def test_duplicate_kernel_warns_and_replaces(scratch: str) -> None:
    tfjs.register_kernel(tfjs.KernelConfig("Echo", scratch, echo))
    newer = tfjs.KernelConfig("Echo", scratch, lambda **_: "newer")
    with pytest.warns(UserWarning, match=f"^The kernel 'Echo' for backend '{scratch}' is already registered$"):
        tfjs.register_kernel(newer)
    assert tfjs.get_kernel("Echo", scratch) is newer


def test_unknown_kernels(scratch: str) -> None:
    assert tfjs.get_kernel("Nothing", "cpu") is None
    with pytest.raises(pullback.KernelError, match=r"^The kernel 'Nothing' for backend 'cpu' is not registered$"):
        tfjs.unregister_kernel("Nothing", "cpu")
    with pytest.raises(pullback.KernelError, match=r"^Kernel 'Nothing' not registered for backend 'cpu'$"):
        tfjs.run_kernel("Nothing", {}, {}, "cpu")
    tfjs.register_backend(scratch, object)
    with pytest.raises(pullback.KernelError, match=f"^Kernel 'MaxPool' not registered for backend '{scratch}'$"):
        tfjs.run_kernel("MaxPool", {"x": X}, POOL, scratch)


def test_unknown_backends() -> None:
    with pytest.raises(ValueError, match=r"^Backend name 'nowhere' not found in registry$"):
        tfjs.set_backend("nowhere")
    with pytest.raises(ValueError, match=r"^Backend name 'nowhere' not found in registry$"):
        tfjs.run_kernel("MaxPool", {"x": X}, POOL, "nowhere")
    with pytest.raises(ValueError, match=r"^nowhere backend not found in registry$"):
        tfjs.remove_backend("nowhere")
    with pytest.raises(ValueError, match="'nowhere'; the built-in ones are"):
        tfjs.max_pool(inputs={"x": X}, attrs=POOL, backend="nowhere")
    assert tfjs.find_backend("nowhere") is None


def test_duplicate_backend_keeps_the_first_factory(scratch: str) -> None:
    first = object()
    assert tfjs.register_backend(scratch, lambda: first)
    with pytest.warns(UserWarning, match=f"^{scratch} backend was already registered"):
        assert not tfjs.register_backend(scratch, object)
    assert tfjs.find_backend(scratch) is first


def test_setup_runs_at_every_set_backend_and_dispose_at_removal(scratch: str) -> None:
    made, events = object(), []
    tfjs.register_backend(scratch, lambda: made)
    hooks = {"setup_func": lambda b: events.append(("setup", b)), "dispose_func": lambda b: events.append(("dispose", b))}
    tfjs.register_kernel(tfjs.KernelConfig("Echo", scratch, echo, **hooks))
    assert tfjs.set_backend(scratch)
    assert tfjs.set_backend(scratch)
    assert events == [("setup", made)] * 2
    tfjs.remove_backend(scratch)
    assert events[2:] == [("dispose", made)]
    assert tfjs.get_kernel("Echo", scratch) is not None  # kernels outlive their backend
    assert tfjs.get_backend() == "cpu"  # the highest priority left


def test_a_backend_that_cannot_start_is_passed_over(scratch: str) -> None:
    def broken() -> None:
        raise OSError("no device")

    tfjs.register_backend(scratch, broken, priority=9)
    try:
        with pytest.warns(UserWarning, match=f"Initialization of backend {scratch} failed"):
            assert not tfjs.set_backend(scratch)
        assert tfjs.get_backend() == "cpu"
    finally:
        tfjs.remove_backend(scratch)


def test_copied_kernels_of_a_name_with_an_underscore(scratch: str) -> None:
    tfjs.register_backend(scratch, object)
    tfjs.copy_registered_kernels("cpu", scratch)
    count = len(tfjs.get_kernels_for_backend("cpu"))
    assert len(tfjs.get_kernels_for_backend(scratch)) == count
    with tfjs.quirks():
        assert tfjs.get_kernels_for_backend(scratch) == []
        assert len(tfjs.get_kernels_for_backend("scratch")) == count
    assert tfjs.get_kernel("MaxPool", scratch) is not None
    np.testing.assert_array_equal(tfjs.run_kernel("MaxPool", {"x": X}, POOL, scratch).reshape(-1), [5, 7, 13, 15])
    before = len(tfjs.get_kernels_for_backend("cpu"))
    tfjs.copy_registered_kernels("nowhere", "cpu")
    assert len(tfjs.get_kernels_for_backend("cpu")) == before


def padded_mean_grad() -> float:
    attrs = {"filterSize": 2, "strides": 1, "pad": "same"}
    ones = np.ones((1, 2, 2, 1), np.float32)
    return float(tfjs.run_kernel("AvgPoolGrad", {"dy": ones, "input": ones}, attrs).sum())


def test_quirks_nest_and_end() -> None:
    assert padded_mean_grad() == 4
    with tfjs.quirks():
        with tfjs.quirks():
            assert padded_mean_grad() == 2.25
        assert padded_mean_grad() == 2.25
    assert padded_mean_grad() == 4


def test_quirks_stay_in_their_thread() -> None:
    answers: list[float] = []
    with tfjs.quirks():
        other = threading.Thread(target=lambda: answers.append(padded_mean_grad()))
        other.start()
        other.join()
    assert answers == [4]
