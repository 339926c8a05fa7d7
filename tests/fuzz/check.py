"""Runs one case in this process and judges it: results, errors, inputs left alone, memory around them, other thread counts."""

from __future__ import annotations

import math
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from mmap import mmap
from typing import Any

import guarded_memory
import ml_dtypes
import numpy as np

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans
from pullback.registry import CPU, kernels_for

from . import compare
from .cases import FLOATS, Case, kernel_op, pairs
from .program import array_lines, call_source, is_exact

ALLOWED = (ValueError, TypeError, MemoryError, pb.KernelError)
COPIED = ("max_pool", "max_pool_jvp", "max_pool_jvp_from_indices", "max_pool_jvp_from_winners")  # results are cells, not sums
FORWARD = ("conv", "max_pool", "avg_pool")


@dataclass
class Outcome:
    """What became of a case. status: same, refused (by the kernel), invalid (an error on both sides) or failed."""

    status: str
    kernel: str | None = None  # that ran
    category: str = ""
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class FailedError(Exception):
    """A case failed: category and text."""


class UnmadeError(Exception):
    """There is no such garbage."""


@dataclass
class _Expected:
    """A case's arrays, and what the reference says of it."""

    key: Case
    variables: dict[str, Any]
    value: Any = None
    error: BaseException | None = None
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    cropping: str | None = None  # what is wrong with it


_last: _Expected | None = None


def evaluate(source: str, variables: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Value or exception of an expression; a warning counts as one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return eval(source, variables), None
    except (Exception, MemoryError) as error:
        return None, error


def plain(value: Any) -> Any:
    """An array as NumPy would have made it."""
    return np.array(value, value.dtype.newbyteorder("=")) if type(value) is np.ndarray else value


def _expected(case: Case) -> _Expected:
    """The reference's answer, remembered for the next kernel."""
    global _last
    key = replace(case, kernel=None, threads=None, again=None, cpus=None, precision="fast", guard=None)
    if _last is not None and _last.key == key:
        return _last
    variables: dict[str, Any] = {"np": np, "pb": pb, "ml_dtypes": ml_dtypes, "Memory": guarded_memory.Memory}
    with pb.backend("reference"):
        try:
            exec("\n".join(array_lines(case)), variables)
        except Exception:
            if case.spoiled:  # garbage that cannot even be made
                raise UnmadeError from None
            raise
        copies = variables | {name: plain(variables[name]) for name in case.arrays()}
        value, error = evaluate(call_source(case), copies)
    _last = _Expected(key, variables, value, error)
    if error is None and not case.spoiled:
        _last.cropping = _crop_difference(case, copies, _last)
    return _last


def _bounds(case: Case, expected: _Expected) -> tuple[np.ndarray, np.ndarray]:
    """The op in float64, and the op in float64 on absolute values."""
    if expected.bounds is None:
        wide = dict(expected.variables)
        for name, role in case.arrays().items():
            wide[name] = plain(wide[name]).astype(np.float64) if role in FLOATS else plain(wide[name])
        summed = (
            ("dy",) if case.op == "max_pool_grad" else tuple(name for name, role in case.arrays().items() if role in FLOATS)
        )
        positive = wide | {name: np.abs(wide[name]) for name in summed}
        with pb.backend("reference"), np.errstate(all="ignore"):
            expected.bounds = eval(call_source(case), wide), eval(call_source(case), positive)
    return expected.bounds


def _crop_difference(case: Case, variables: dict[str, Any], expected: _Expected) -> str | None:
    """Negative padding crops: the op on the cells that are left must say the same, but for rounding: other strides, other sums."""
    if case.op not in FORWARD or case.returns != "values" or isinstance(case.padding, str):
        return None
    pads = pairs(case.padding, case.rank)
    if all(min(pair) >= 0 for pair in pads):
        return None
    cuts = tuple(slice(max(0, -p), n - max(0, -q)) for n, (p, q) in zip(case.size, pads, strict=True))
    left = tuple(max(0, cut.stop - cut.start) for cut in cuts)
    if min(left) < 1:
        return None
    cropped = replace(case, size=left, padding=tuple((max(0, p), max(0, q)) for p, q in pads))
    last = case.activation(-1, case.size)[-1] == -1
    inner = variables["x"][(slice(None), *cuts)] if last else variables["x"][(slice(None), slice(None), *cuts)]
    with pb.backend("reference"):
        other, error = evaluate(call_source(cropped), variables | {"x": inner})
    if error is not None:
        return f"cropped by padding it gives {expected.value.shape}, cropped by slices {error!r}"
    if case.op in COPIED or is_exact(case):
        verdict = compare.bitwise(expected.value, other)
    else:
        verdict = compare.within_bound(other, expected.value, *_bounds(case, expected), case.terms())
    return None if verdict is None else f"cropped by padding against cropped by slices: {verdict[1]}"


def root(array: Any) -> np.ndarray:
    """The array whose memory this is a view of; guarded memory beside it cannot be looked at."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return array if isinstance(getattr(whole.base, "obj", whole.base), mmap) else whole


def _checksums(arrays: dict[str, Any]) -> dict[str, int]:
    return {name: zlib.crc32(root(value).tobytes()) for name, value in arrays.items() if type(value) is np.ndarray}


@contextmanager
def _one_cpu(number: int | None) -> Iterator[None]:
    """On one of the CPUs of this process."""
    if number is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _call(case: Case, variables: dict[str, Any], threads: int | None) -> tuple[Any, BaseException | None, str | None]:
    """Value, or exception, and the name of the kernel that was to run."""
    chosen: str | None = None
    with ExitStack() as block:
        block.enter_context(pb.backend(CPU))
        block.enter_context(pb.precision(case.precision))
        block.enter_context(_one_cpu(case.cpus))
        if case.kernel is not None:
            block.enter_context(pb.kernel(case.kernel))
        if threads is not None or case.guard:
            block.enter_context(pb.threads(threads if threads is not None and not case.guard else 1))
        source = call_source(case)
        if not case.spoiled:
            explained = source.replace(f"pb.{case.op}(", f"pb.explain({case.op!r}, ", 1)
            explanation, error = evaluate(explained, variables)
            if error is None and explanation.chosen is not None:
                chosen = explanation.chosen.name if explanation.chosen.backend == CPU else "reference"
        if not case.guard:
            return *evaluate(source, variables), chosen
        release_plans()  # their tables lie in guarded memory too, which is for one call
        with guarded_memory.bare_block(case.guard) as memory:
            guarded = variables | {name: memory.copy(variables[name]) for name in case.arrays()}
            value, error = evaluate(source, guarded)
        release_plans()
        try:
            memory.check()
        except AssertionError as stray:
            raise FailedError("memory", str(stray)) from None
        return value, error, chosen


def _judge_errors(case: Case, theirs: BaseException | None, ours: BaseException | None, chosen: str | None) -> str | None:
    """The status of a call with an exception on either side; None without."""
    for who, error in (("the reference", theirs), ("the call", ours)):
        if error is not None and not (type(error) in ALLOWED or isinstance(error, MemoryError)):
            raise FailedError("exception", f"{who} raised {error!r}")
    if isinstance(ours, pb.KernelError) and case.kernel is not None:
        if chosen is not None:
            raise FailedError("exception", f"explain() says {chosen} runs, but the call raised {ours!r}")
        return "refused"
    if theirs is None and ours is None:
        return None
    if case.spoiled and (isinstance(theirs, MemoryError) or isinstance(ours, MemoryError)):
        return "invalid"
    if type(theirs) is not type(ours) and not (isinstance(theirs, MemoryError) and isinstance(ours, MemoryError)):
        raise FailedError("exception", f"the reference: {theirs!r}, the call: {ours!r}")
    if isinstance(ours, (ValueError, TypeError)):
        message = str(ours)
        if not message.startswith((f"{case.op}: ", f"{case.op}() got an unexpected keyword")):
            raise FailedError("message", f"it does not begin with its op: {ours!r}")
        if not (ours.__suppress_context__ or ours.__context__ is None):
            raise FailedError("message", f"a chain of exceptions: {ours.__context__!r}, then {ours!r}")
    return "invalid"


def _relative_error(case: Case, chosen: str | None) -> float:
    dtype = np.dtype(ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype)
    return sum(k.relative_error(dtype) for k in kernels_for(kernel_op(case.op), CPU) if (k.backend, k.name) == (CPU, chosen))


def _judge_values(case: Case, expected: _Expected, found: Any, chosen: str | None) -> None:
    results, wanted = (value if isinstance(value, tuple) else (value,) for value in (found, expected.value))
    if len(results) != len(wanted):
        raise FailedError("form", f"{len(results)} results for {len(wanted)}")
    error = _relative_error(case, chosen)
    for result, want in zip(results, wanted, strict=True):
        if case.spoiled:
            verdict = compare.unlike(result, want)
        elif case.op in COPIED or (is_exact(case) and not error):
            verdict = compare.bitwise(result, want, case.op)
        elif not error:
            verdict = compare.within_bound(result, want, *_bounds(case, expected), case.terms())
        else:
            factors = [plain(expected.variables[name]).astype(np.float64) for name in case.arrays()]
            norms = math.prod(compare.norm(np.where(np.isfinite(a), a, 0)) for a in factors)
            # An error is one of a tile, whose cells may differ that much, or be zero where a result sums them.
            scale = norms if case.data in ("wide", "tiny", "zeros") else None
            verdict = compare.within_norm(result, want, *_bounds(case, expected), case.terms(), error, scale)
        if verdict is not None:
            raise FailedError(*verdict)
        inputs = [value for value in expected.variables.values() if type(value) is np.ndarray]
        if any(np.may_share_memory(result, value) for value in inputs):
            raise FailedError("form", "the result shares memory with an input")


def _bits(found: Any) -> list[bytes]:
    return [value.tobytes() for value in (found if isinstance(found, tuple) else (found,))]


def check(case: Case) -> Outcome:
    """Run a case."""
    chosen: str | None = None
    try:
        expected = _expected(case)
        arrays = {name: expected.variables[name] for name in case.arrays()}
        before = _checksums(arrays)
        found, error, chosen = _call(case, expected.variables, case.threads)
        if _checksums(arrays) != before:
            raise FailedError("input written", "an input is not what it was before the call")
        status = _judge_errors(case, expected.error, error, chosen)
        if status is not None:
            return Outcome(status, chosen)
        _judge_values(case, expected, found, chosen)
        if expected.cropping is not None and case.kernel is None:  # nothing to do with kernels: said once
            raise FailedError("crop", expected.cropping)
        if case.again is not None:
            again, error, _ = _call(case, expected.variables, case.again)
            if error is not None or _bits(again) != _bits(found):
                what = repr(error) if error is not None else compare.bitwise(*map(_first, (again, found))) or "other bits"
                raise FailedError("threads", f"with {case.again} threads instead of {case.threads}: {what}")
    except FailedError as failure:
        return Outcome("failed", chosen, *failure.args)
    except UnmadeError:
        return Outcome("invalid", None)
    return Outcome("same", chosen)


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found
