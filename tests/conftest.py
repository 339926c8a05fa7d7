"""Fixtures of the core tests: a kernel by name, each backend by dispatch, two small benchmark cases. Kernels are kept on disk."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench_fakes import CONV, POOL
from hypothesis import settings
from kernels import KernelUnderTest

import pullback as pb
from pullback.bench.cases import Case, parse_case
from pullback.settings import environment

# A shell's background job ignores Ctrl-C, and the commands that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One folder for all workers and later runs, so that a kernel is compiled once for its source and not once a worker.
os.environ.setdefault("PULLBACK_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "kernels"))

os.environ["PULLBACK_PROFILE"] = "builtin"  # what is chosen must not depend on what was measured here before
os.environ.setdefault("PULLBACK_QUIET", "1")  # of compilations: tests look at what else is said

# Of the tests in with_triton: Triton looks at it when it is imported, which PyTorch may do at any time.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Derandomised, so that a failure is the same on every machine; no deadline, since a first call may compile.
settings.register_profile("pullback", derandomize=True, deadline=None, max_examples=200)
settings.load_profile("pullback")


# Files of a framework are read only where it is installed.
collect_ignore_glob = [] if find_spec("jax") else ["test_jax*.py"]


def pytest_runtest_teardown() -> None:
    """What compiling kernels leaves behind is large and stays: the garbage collector need not look at it again every time."""
    gc.freeze()


@pytest.fixture
def kernel_under_test(request: pytest.FixtureRequest) -> Iterator[KernelUnderTest]:
    """The kernel that `kernels_of` chose, by its name. A test whose every case it refused has shown nothing, and fails."""
    under_test = KernelUnderTest(*request.param)
    yield under_test
    assert under_test.accepted, f"{under_test.name} refused every case: {under_test.refusals}"


@pytest.fixture(params=pb.backends())
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each backend, on whichever kernel dispatch takes."""
    with pb.backend(request.param):
        yield request.param


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str | None], None]]:
    """Sets (or with None unsets) a variable of the environment as if the process had begun with it."""

    def set_or_unset(name: str, value: str | None) -> None:
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
        environment.cache_clear()

    yield set_or_unset
    environment.cache_clear()


@pytest.fixture
def pool_case() -> Case:
    return parse_case("pool", POOL)


@pytest.fixture
def conv_case() -> Case:
    return parse_case("conv", CONV)
