"""Dispatch: the first kernel of the list that can run a problem and pays, and what happens where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from pullback.problem import AnyProblem
from pullback.registry.in_force import asked_backend, asked_kernel, current_backend, is_default, selection
from pullback.registry.kernels import Explanation, Kernel, KernelError, MissingCode, Run, Verdict, by_preference
from pullback.registry.lists import CPU, REFERENCE, backends, kernels_for, why_unavailable
from pullback.settings import during

MOST_CHOSEN = 1024

_chosen: dict[Any, Run] = {}  # by problem and selection: asking the kernels again takes longer than a small kernel runs


def explain_problem(problem: AnyProblem) -> Explanation:
    """Ask the kernels that may run a problem, in order."""
    return Explanation(problem, current_backend(), tuple(_verdicts(problem)), asked_kernel.get() is not None)


def _verdicts(problem: AnyProblem) -> Iterator[Verdict]:
    candidates = kernels_for(problem.op, current_backend())
    wanted = asked_kernel.get()
    if wanted is not None:
        named = tuple(k for k in candidates if k.is_named(wanted))
        if not named:
            raise KernelError(_no_such_kernel(problem.op, wanted, candidates))
        candidates = named
    for candidate in candidates:
        yield candidate.verdict(problem)


def _no_such_kernel(op: str, wanted: str, candidates: tuple[Kernel, ...]) -> str:
    here, there = current_backend(), wanted.partition("/")[0]
    if there != here and there in backends() and any(k.is_named(wanted) for k in kernels_for(op, there)):
        return f"{op}: the kernel {wanted!r} is not on backend {here!r}, which is in force; use pullback.backend({there!r}) too"
    return f"{op}: no kernel {wanted!r} on backend {here!r}; there are {[k.name for k in candidates]}"


def chosen_kernel(problem: AnyProblem) -> Kernel:
    """The kernel that runs a problem; KernelError with all refusals if there is none."""
    named = asked_kernel.get() is not None
    refusals = []

    def heard() -> Iterator[Verdict]:
        for verdict in _verdicts(problem):
            refusals.append(f"{verdict.kernel.label}: {verdict.reason}")
            yield verdict

    if not named and is_default():
        _warn_of_slowness()
    for verdict in by_preference(heard(), named):
        kernel = verdict.kernel
        if named:
            return replace(kernel, run=_nameless(kernel.run))
        return replace(kernel, run=_or_reference(kernel.run)) if kernel.backend == CPU and _may_lack_code() else kernel
    raise KernelError(f"{problem.op}: no kernel accepts this problem ({'; '.join(refusals) or 'none is registered'})")


def chosen_run(problem: AnyProblem) -> Run:
    """What runs a problem: the function of the kernel chosen for it."""
    key = (problem, selection())
    run = _chosen.get(key)
    if run is None:
        run = chosen_kernel(problem).run
        if len(_chosen) >= MOST_CHOSEN:
            _chosen.clear()
        _chosen[key] = run
    return run


def dispatch(problem: AnyProblem, *arrays: Any) -> Any:
    """Run a problem on the kernel chosen for it."""
    return chosen_run(problem)(problem, *arrays)


def forget_choices() -> None:
    """Ask the kernels again, and whether their code is there, from now on."""
    _chosen.clear()
    _may_lack_code.cache_clear()


def _nameless(run: Run) -> Run:
    """The name asks for one kernel: where that has others do part of its work, it does not speak of these."""

    @wraps(run)
    def without_name(*arguments: Any) -> Any:
        with during(asked_kernel, None):
            return run(*arguments)

    return without_name


_told: set[str] = set()


def _warn_of_slowness() -> None:
    """Say once that the fast kernels are not there; who has chosen a backend knows."""
    why = why_unavailable(CPU)
    if why is not None and why not in _told:
        _told.add(why)
        warnings.warn(f"all ops run on the slow {REFERENCE} backend ({why})", RuntimeWarning, stacklevel=6)


@cache
def _may_lack_code() -> bool:
    """Whether kernels may find no machine code: where nothing compiles what is not shipped."""
    from pullback.cpu.machine_code.find import has_compiler

    return not has_compiler()


def _or_reference(run: Run) -> Run:
    """A kernel whose place the reference takes, with a warning, where it has no machine code."""

    @wraps(run)
    def with_reference(problem: AnyProblem, *arrays: Any) -> Any:
        try:
            return run(problem, *arrays)
        except MissingCode as error:
            warnings.warn(f"{problem.op} runs on the slow {REFERENCE} backend: {error}", RuntimeWarning, stacklevel=4)
            with during(asked_backend, REFERENCE):
                return dispatch(problem, *arrays)

    return with_reference
