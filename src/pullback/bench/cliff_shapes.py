"""Random shapes for `pullback bench cliffs`: each comes from a seed and its number alone, and has one neighbour beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pullback.bench.cases import OPS, Case, Kind, Task, bytes_moved, flop, parse_case

Group = Literal["dense", "grouped", "depthwise", "pooling"]
GROUPS: tuple[Group, ...] = ("dense", "grouped", "depthwise", "pooling")
SHARES = (40, 15, 15, 30)  # in 100 shapes
CLIFF_OPS = tuple(op for op in OPS if not op.endswith("_pair"))
LARGEST_SIZE = {1: 8192, 2: 160, 3: 48}
MOST_CHANNELS, MOST_BATCH, LARGEST_WINDOW = 512, 64, 7
STRIDES, STRIDE_SHARES = (1, 2, 3, 4), (40, 30, 20, 10)
DILATIONS, DILATION_SHARES = (1, 2, 3), (85, 10, 5)
VECTOR = 16  # float32 lanes of AVX-512; a whole number of them is one of AVX2 and NEON too
# Rough times of one op: long enough for an honest sample, short enough for many rows. They need not be this machine's.
LEAST_SECONDS, MOST_SECONDS = 2e-4, 1e-2
FLOP_RATE, BYTE_RATE, TAP_RATE = 150e9, 20e9, 30e9
MOST_CELLS = 8_000_000  # of any array


@dataclass(frozen=True)
class Shape:
    """An op on a case, and the same op on a case that differs in one parameter (`step` says which)."""

    seed: int
    number: int
    group: Group
    op: str
    case: Case
    neighbour: Case
    step: str

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"


def draw(seed: int, number: int) -> Shape:
    """The shape of this number; the same on every machine."""
    rng = Random(f"pullback cliffs {seed}:{number}")
    group: Group = rng.choices(GROUPS, SHARES)[0]
    kind: Kind = "pool" if group == "pooling" else "conv"
    op = rng.choice([op for op in CLIFF_OPS if OPS[op][0] == kind])
    while True:
        entry = _entry(rng, group, op)
        case = _fitting(kind, op, entry)
        if case is None:
            continue
        steps = _steps(kind, entry)
        rng.shuffle(steps)
        for step, changed in steps:
            try:
                return Shape(seed, number, group, op, case, parse_case(kind, changed), step)
            except ValueError:  # no window fits any more
                continue


def estimate(task: Task) -> float:
    """A rough time in seconds, to bound the work and to compare neighbours by the operations that they need."""
    w = task.case.window
    taps = math.prod(w.output_size) * w.tap_count * task.case.batch * task.case.channels_out if not flop(task) else 0
    return flop(task) / FLOP_RATE + bytes_moved(task) / BYTE_RATE + taps / TAP_RATE


def _fitting(kind: Kind, op: str, entry: dict[str, Any]) -> Case | None:
    """The case of an entry, where windows fit and the work is neither too little nor too much."""
    try:
        case = parse_case(kind, entry)
    except ValueError:
        return None
    cells = max(math.prod(case.input_shape), math.prod(case.output_shape))
    seconds = estimate(Task(op, case, "float32", "channels_last"))
    return case if LEAST_SECONDS <= seconds <= MOST_SECONDS and cells <= MOST_CELLS else None


def _entry(rng: Random, group: Group, op: str) -> dict[str, Any]:
    """A case as lists have it; not every one fits."""
    rank = rng.choices((1, 2, 3), (20, 55, 25))[0]
    kernel = _per_axis(rng, rank, lambda: rng.randint(1, LARGEST_WINDOW))
    stride = _per_axis(rng, rank, lambda: rng.choices(STRIDES, STRIDE_SHARES)[0])
    no_dilation = op.startswith("avg")  # PyTorch has none there
    dilation = 1 if no_dilation else rng.choices(DILATIONS, DILATION_SHARES)[0]
    fill = rng.choice((0, 0.5, 0.5, 1)) if group != "pooling" else rng.choice((0, 0.5))  # of a window's reach
    padding = [int(fill * dilation * (k - 1)) if group != "pooling" else int(fill * k) for k in kernel]
    entry: dict[str, Any] = {
        "batch": _log_uniform(rng, 1, MOST_BATCH),
        "size": _per_axis(rng, rank, lambda: _log_uniform(rng, 4, LARGEST_SIZE[rank])),
        "stride": stride,
        "dilation": dilation,
        "padding": padding,
    }
    if group == "pooling":
        return entry | {"channels": _channels(rng), "window": kernel}
    groups, c_in, c_out = 1, _channels(rng), _channels(rng)
    if group == "grouped":
        groups, each_in, each_out = (_log_uniform(rng, 2, 32) for _ in range(3))
        c_in, c_out = groups * each_in, groups * each_out
    elif group == "depthwise":
        groups, c_out = c_in, c_in * rng.choices((1, 2), (9, 1))[0]
    return entry | {"c_in": c_in, "c_out": c_out, "kernel": kernel, "groups": groups}


def _per_axis(rng: Random, rank: int, one: Any) -> list[int]:
    """Mostly the same for all axes."""
    first = one()
    return [first] + [first if rng.random() < 0.75 else one() for _ in range(rank - 1)]


def _log_uniform(rng: Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _channels(rng: Random) -> int:
    """Any number, or as often whole vectors."""
    count = _log_uniform(rng, 1, MOST_CHANNELS)
    return count if rng.random() < 0.5 else max(VECTOR, _whole(count))


def _whole(count: int) -> int:
    """The nearest whole number of vectors that is another number, but not none."""
    near = max(VECTOR, round(count / VECTOR) * VECTOR)
    return near if near != count else count + VECTOR


def _steps(kind: Kind, entry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Entries that differ in one parameter, each with a word on it: whole vectors of channels or cells, the next stride."""
    found: list[tuple[str, dict[str, Any]]] = []

    def add(what: str, before: Any, after: Any, **changed: Any) -> None:
        found.append((f"{what} {before} -> {after}", {**entry, **changed}))

    stride: Sequence[int] = entry["stride"]
    other = [s - 1 if s > 1 else s + 1 for s in stride]
    add("stride", "x".join(map(str, stride)), "x".join(map(str, other)), stride=other)
    size = entry["size"]
    add("width", size[-1], _whole(size[-1]), size=[*size[:-1], _whole(size[-1])])
    if kind == "pool":
        add("channels", entry["channels"], _whole(entry["channels"]), channels=_whole(entry["channels"]))
    elif entry["groups"] == 1:
        for side in ("c_in", "c_out"):
            add(side, entry[side], _whole(entry[side]), **{side: _whole(entry[side])})
    elif entry["groups"] == entry["c_in"]:
        after, each = _whole(entry["c_in"]), entry["c_out"] // entry["c_in"]
        add("channels", entry["c_in"], after, c_in=after, c_out=after * each, groups=after)
    return found
