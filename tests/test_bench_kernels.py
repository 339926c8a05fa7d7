"""`pullback bench kernels` on a backend of two kernels: whom dispatch takes, and the next one that could."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bench_fakes import FakeClock

import pullback as pb
from pullback import registry
from pullback.bench import kernels
from pullback.bench.cases import Case
from pullback.problem import Problem

SECONDS = {"quick": 1.0, "slow": 3.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    made = FakeClock()

    def add(name: str, accepts: Any) -> None:
        def run(problem: Problem, *arrays: Any) -> Any:
            made.step(SECONDS[name])
            return registry.kernels_for(problem.op, registry.REFERENCE)[0].run(problem, *arrays)

        pb.register_kernel("avg_pool", "spare", name, accepts, run)

    add("quick", lambda problem: None)
    add("slow", lambda problem: None if problem.layout == "channels_last" else "it is for channels_last")
    monkeypatch.setattr(registry, "default_backend", lambda: "spare")
    yield made
    for name in SECONDS:
        pb.unregister_kernel("avg_pool", "spare", name)


def test_gain_over_the_next_kernel_that_can(clock: FakeClock, pool_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = kernels.tasks(["avg_pool", "avg_pair", "conv"], [pool_case], ["channels_last", "channels_first"], "float32")
    assert [(task.op, task.layout) for task in wanted] == [("avg_pool", "channels_last"), ("avg_pool", "channels_first")]
    gains = kernels.run(wanted, 1, 0, clock=clock, pause=lambda seconds: None)
    [gain] = gains.found
    assert (gain.kernel, gain.following, gain.ratio) == ("quick", "slow", pytest.approx(3.0))
    assert gains.alone == {("avg_pool", "quick"): 1}
    kernels.print_gains(gains, least=4.0)
    assert "below the bar" in capsys.readouterr().out
