"""Whether a result is right: bit for bit where there is one right answer, within an error bound where sums are rounded."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

SLACK = 2  # both sides of a comparison round
# Ops whose zeros may have either sign, by docs/rules.md.
SIGN_MAY_DIFFER = frozenset(
    {"avg_pool", "avg_pool_grad", "max_pool_grad", "max_pool_grad_from_indices", "max_pool_grad_from_winners"}
)

Verdict = tuple[str, str] | None  # category and text; None: it is right


def unlike(found: np.ndarray, expected: np.ndarray) -> Verdict:
    """A difference in type, shape or flags."""
    if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (expected.dtype, expected.shape):
        shown = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else repr(type(found))
        return "form", f"got {shown}, expected {expected.dtype} {expected.shape}"
    return None if found.flags.writeable else ("form", "the result is read-only")


def _shown(wrong: np.ndarray, found: np.ndarray, expected: np.ndarray) -> str:
    where = tuple(np.argwhere(wrong)[0].tolist())
    return f"{int(wrong.sum())} of {wrong.size} differ, first at {where}: got {found[where]}, expected {expected[where]}"


def bitwise(found: np.ndarray, expected: np.ndarray, op: str = "") -> Verdict:
    """One right answer: the same numbers, the sign of zero included but for some ops; any NaN is like any other."""
    if (form := unlike(found, expected)) is not None:
        return form
    if found.dtype.kind in "iu":
        wrong = found != expected
        return ("values", _shown(wrong, found, expected)) if wrong.any() else None
    a, b = found.astype(np.float64), expected.astype(np.float64)
    wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if wrong.any():
        return "values", _shown(wrong, a, b)
    signs = (np.signbit(a) != np.signbit(b)) & ~np.isnan(b)
    return ("sign of zero", _shown(signs, a, b)) if signs.any() and op not in SIGN_MAY_DIFFER else None


def _sum_type(dtype: np.dtype[Any]) -> Any:
    return np.finfo(np.float64 if dtype.itemsize == 8 else np.float32)


def _not_finite(a: np.ndarray, exact: np.ndarray, may_overflow: np.ndarray) -> np.ndarray:
    """Where infinities and NaN are not as they should be."""
    special = ~np.isfinite(exact) & ~may_overflow
    return special & ~((a == exact) | (np.isnan(a) & np.isnan(exact)))


def within_bound(found: np.ndarray, expected: np.ndarray, exact: np.ndarray, absolute: np.ndarray, terms: int) -> Verdict:
    """|err| <= c n eps (the op on absolute values): eps that of the sums, plus a rounding to the result's type.

    Where sums of absolute values overflow, anything may come out; beside the largest number, infinity may.
    """
    if (form := unlike(found, expected)) is not None:
        return form
    dtype, info = found.dtype, ml_dtypes.finfo(found.dtype)
    sums, largest = _sum_type(dtype), float(info.max)
    a = found.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        may_overflow = absolute * (1 + SLACK * terms * float(sums.eps)) >= float(sums.max)
        bound = SLACK * terms * (float(sums.eps) * absolute + float(sums.smallest_subnormal)) + float(info.smallest_subnormal)
        if dtype.itemsize == 2:
            bound = bound + float(info.eps) * np.abs(exact)
        near = np.abs(a - exact) <= bound
        past_largest = (np.abs(exact) + bound >= largest) & np.isinf(a) & (np.sign(a) == np.sign(exact))
        wrong = _not_finite(a, exact, may_overflow) | (np.isfinite(exact) & ~near & ~past_largest & ~may_overflow)
    if not wrong.any():
        return None
    where = tuple(np.argwhere(wrong)[0].tolist())
    return "values", f"{_shown(wrong, a, exact)} with a bound of {bound[where]:.3g}"


def norm(values: np.ndarray) -> float:
    """Euclidean, of numbers whose squares may not exist."""
    largest = float(np.abs(values).max(initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if 0 < largest < np.inf else largest


def within_norm(
    found: np.ndarray,
    expected: np.ndarray,
    exact: np.ndarray,
    absolute: np.ndarray,
    terms: int,
    error: float,
    scale: float | None,
) -> Verdict:
    """For arithmetic that is not that of plain sums: the norm of the error is at most `error` of that of `absolute`, or `scale`."""
    if (form := unlike(found, expected)) is not None:
        return form
    info, sums = ml_dtypes.finfo(found.dtype), _sum_type(found.dtype)
    a = found.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        may_overflow = (absolute * (1 + SLACK * terms * float(sums.eps)) >= float(sums.max)) | (
            np.abs(exact) * (1 + 2 * float(info.eps)) >= float(info.max)
        )
        wrong = _not_finite(a, exact, may_overflow)
        if wrong.any():
            return "values", _shown(wrong, a, exact)
        counted = np.isfinite(exact) & ~may_overflow
        if not np.isfinite(a[counted]).all():
            return "values", _shown(counted & ~np.isfinite(a), a, exact)
        off = norm(a[counted] - exact[counted])
        size = norm(absolute[counted])
        # What falls below the smallest number: docs/cpu.md states it for each channel and set of taps, so at most for each term.
        lost = np.sqrt(counted.sum()) * (float(info.smallest_subnormal) + 2**17 * terms * float(sums.smallest_subnormal))
        bound = error * (size if scale is None else max(size, scale)) + lost
        if found.dtype.itemsize == 2:
            bound += float(info.eps) * size
    return (
        None if off <= bound else ("values", f"error {off:.3g} by norm, over {bound:.3g} (norm of absolute values {size:.3g})")
    )
