"""A case as Python source: the lines that make its arrays, and its call. What runs is what a report shows, ready to paste."""

from __future__ import annotations

import inspect
import math
import re
from functools import cache
from typing import Any

import pullback as pb

from .cases import ARGUMENTS, FLOATS, INTEGERS, KEYWORDS, Case

SUBNORMAL = {"float32": "2.0**-149", "float64": "2.0**-1074", "float16": "2.0**-24", "bfloat16": "2.0**-133"}
RANGE = {"float32": 30, "float64": 140, "float16": 4, "bfloat16": 30}

# Numbers of a kind, given `shape`. EXACT ones have sums without any rounding in float32 and float64.
EXACT = {
    "integers": "rng.integers(-3, 4, shape)",
    "ones": "np.ones(shape)",
    "zeros": "rng.choice([-0.0, 0.0, 1.0, -1.0], shape)",
    "specials": "rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.0], shape)",
    "sprinkled": "np.where(rng.random(shape) < 0.02, rng.choice([np.nan, np.inf, -np.inf], shape), rng.integers(-3, 4, shape))",
    "subnormals": "rng.integers(-9, 10, shape) * {subnormal}",
}
ROUNDED = {
    "reals": "rng.standard_normal(shape)",
    "wide": "rng.standard_normal(shape) * 10.0 ** rng.uniform(-{range}, {range}, shape)",
    "tiny": "rng.standard_normal(shape) * 10.0 ** rng.uniform(-{range}, 0, shape)",
}
ONE_ARRAY = ("sprinkled", "subnormals")  # which one, the seed says; the others are integers

# The same numbers (but for those that repeat some) in other memory.
MEMORY = {
    "every second": "np.repeat(a, 2, axis=-1)[..., ::2]",
    "rows apart": "np.concatenate([a, a], axis=1)[:, : a.shape[1]]",
    "backwards": "np.flip(np.ascontiguousarray(np.flip(a)))",
    "rows backwards": "np.flip(np.ascontiguousarray(np.flip(a, 1)), 1)",
    "fortran": "np.asfortranarray(a)",
    "turned": "np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)",
    "misaligned": "np.frombuffer(bytearray(b'.' + a.tobytes()), a.dtype, offset=1).reshape(a.shape)",
    "read-only": "np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape)",
    "swapped": "a.astype(a.dtype.newbyteorder())",
    "one image": "np.broadcast_to(a[:1], a.shape)",
    "one column": "np.broadcast_to(a[..., :1], a.shape)",
    "overlapping": "np.lib.stride_tricks.as_strided(a, a.shape, (a.itemsize,) * a.ndim)",
    "above": "Memory('above').copy(a)",
    "below": "Memory('below').copy(a)",
}
NEVER_SWAPPED = ("bfloat16", "uint8")  # ml_dtypes has no other byte order, a byte none at all


def named(expression: str, name: str) -> str:
    """An expression of `a` as one of another name."""
    return re.sub(r"\ba\b", name, expression)


def dtype_source(dtype: str) -> str:
    return "ml_dtypes.bfloat16" if dtype == "bfloat16" else f"np.{dtype}"


def is_exact(case: Case) -> bool:
    """Whether sums of the data come out without rounding; a divided gradient never does."""
    return case.data in EXACT and case.op != "avg_pool_grad"


def _numbers(case: Case, place: int, role: str, count: int) -> str:
    kind = case.data
    if kind in ONE_ARRAY and case.seed % count != place:
        kind = "integers"
    source = (EXACT | ROUNDED)[kind].format(subnormal=SUBNORMAL[case.dtype], range=RANGE[case.dtype])
    numbers = source.replace("shape", str(case.shape(role)))
    return (
        f"{numbers}.astype({dtype_source(case.dtype)})"
        if " * " not in source
        else f"({numbers}).astype({dtype_source(case.dtype)})"
    )


def _winner_dtype(case: Case) -> str:
    taps = math.prod(case.window)
    return "uint8" if taps <= (256 if case.nan == "propagate" else 255) else "uint16" if taps <= 2**16 - 1 else "uint32"


def _integers(case: Case, role: str) -> str:
    """Indices or winners: those of a maximum, any that a window or input could have, or any at all."""
    shape, inner = case.shape("output"), case.shape("input")
    if case.source == "true" and case.geometry is not None:
        options = keyword_source("max_pool", case, (*KEYWORDS["max_pool_grad"], "storage_order"))
        values = f"rng.integers(-3, 4, {inner}).astype(np.float32)"
        return f"pb.max_pool({values}, {case.window}{options}, return_{role}=True)[1]"
    if role == "winners":
        dtype = _winner_dtype(case)
        most = f"np.iinfo(np.{dtype}).max + 1" if case.source == "wrong" else str(math.prod(case.window))
        return f"rng.integers(0, {most}, {shape}).astype(np.{dtype})"
    beyond = 3 if case.source == "wrong" else 0
    dtype = "int32" if case.source == "narrow" else "int64"
    return f"rng.integers({-1 - beyond}, {max(0, math.prod(inner)) + beyond}, {shape}).astype(np.{dtype})"


@cache
def defaults(op: str) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(getattr(pb, op)).parameters.items()}


def keyword_values(case: Case) -> dict[str, Any]:
    """Every keyword's value by its name in the API."""
    return vars(case) | {
        "return_indices": case.returns == "indices",
        "return_winners": case.returns == "winners",
        "output_shape": case.shape("input") if case.op == "conv_transpose" and case.by_shape else None,
        "output_padding": 0 if case.by_shape else case.output_padding,
    }


def keyword_source(op: str, case: Case, names: tuple[str, ...]) -> str:
    """', name=value' of each that is not the default."""
    values, usual = keyword_values(case), defaults(op)
    return "".join(f", {name}={values[name]!r}" for name in names if values[name] != usual[name])


def array_lines(case: Case) -> list[str]:
    """Lines after which the array arguments are variables of their own names; garbage in place of one is another line."""
    spoiled = dict(case.spoiled)
    lines = [f"rng = np.random.default_rng({case.seed})"]
    arrays = case.arrays()
    floats = sum(role in FLOATS for role in arrays.values())
    for place, (name, role) in enumerate(arrays.items()):
        lines.append(f"{name} = " + (_numbers(case, place, role, floats) if role in FLOATS else _integers(case, role)))
        kind = case.memory[place] if place < len(case.memory) else "plain"
        dtype = _winner_dtype(case) if role == "winners" else case.dtype if role in FLOATS else "int64"
        empty = 0 in case.shape("output" if role in INTEGERS else role)
        if kind != "plain" and not empty and not (kind == "swapped" and dtype in NEVER_SWAPPED):
            lines.append(f"{name} = " + named(MEMORY[str(kind)], name))
        if name in spoiled:
            lines.append(f"{name} = " + named(spoiled[name], name))
    return lines


def call_source(case: Case) -> str:
    """The call, in terms of the variables of `array_lines`."""
    spoiled = dict(case.spoiled)
    arguments = []
    for name, role in ARGUMENTS[case.op].items():
        if role in FLOATS + INTEGERS:
            arguments.append(name)
            continue
        value: Any = case.window if role == "window" else case.shape("filter" if name == "filter_shape" else "input")
        arguments.append(named(spoiled[name], repr(value)) if name in spoiled else repr(value))
    names = tuple(name for name in KEYWORDS[case.op] if name not in spoiled)
    values = keyword_values(case) | {"output_shape": case.shape("input")}
    wrong = [
        f", {name}={named(expression, repr(values.get(name)))}"
        for name, expression in case.spoiled
        if name not in ARGUMENTS[case.op]
    ]
    return f"pb.{case.op}({', '.join(arguments)}{keyword_source(case.op, case, names)}{''.join(wrong)})"


def contexts(case: Case, threads: int | None) -> list[str]:
    """The `with` blocks of the call."""
    found = ["pb.backend('cpu')"]
    if case.kernel is not None:
        found.append(f"pb.kernel({case.kernel!r})")
    if case.precision != "fast":
        found.append(f"pb.precision({case.precision!r})")
    if threads is not None:
        found.append(f"pb.threads({threads})")
    return found


def snippet(case: Case, category: str) -> str:
    """The case as a script of a few lines that shows the failure."""
    lines, call = array_lines(case), call_source(case)
    body = "\n".join((*lines, call))
    imports = ["import numpy as np", "import pullback as pb"]
    if "ml_dtypes" in body:
        imports.insert(0, "import ml_dtypes")
    if case.guard or "Memory(" in body:
        imports.append(f"from guarded_memory import {'bare_block' if case.guard else 'Memory'}  # in tests/")
    if not any("rng." in line for line in lines[1:]):
        del lines[0]
    if case.cpus is not None:
        lines.append(f"import os; os.sched_setaffinity(0, {{sorted(os.sched_getaffinity(0))[{case.cpus}]}})")
    if category not in ("crash", "hang", "exception", "message"):
        lines += ["with pb.backend('reference'):", f"    expected = {call}"]
    if case.guard:
        lines.append(f"with bare_block({case.guard!r}) as memory, {', '.join(contexts(case, 1))}:")
        lines += [f"    {name} = memory.copy({name})" for name in case.arrays()]
    else:
        lines.append(f"with {', '.join(contexts(case, case.threads))}:")
    lines.append(f"    found = {call}")
    if case.guard:
        lines.append("memory.check()")
    if category == "threads":
        lines += [f"with {', '.join(contexts(case, case.again))}:", f"    again = {call}", "print(again, found)"]
    elif "expected" in "".join(lines):
        lines.append("print(found, expected)")
    return "\n".join((*imports, *lines))
