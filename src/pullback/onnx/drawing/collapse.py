"""Fewer stages of a large graph: what always follows a node joins its stage, and stages that come again are drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pullback.onnx.drawing.stages import FAMILIES, Stage

MOST_STAGES = 24  # of a graph that is shown node by node
FOLLOWERS = (*FAMILIES["normalization"], *FAMILIES["activation"], "Dropout", "Flatten", "Reshape")
LONGEST_PERIOD = 16


def collapsed(stages: list[Stage], most: int = MOST_STAGES) -> list[Stage]:
    """The stages as they are if they are few; otherwise joined with their followers, then without repeats."""
    return _without_repeats(_joined(stages)) if len(stages) > most else stages


def _joined(stages: list[Stage]) -> list[Stage]:
    readers = [0] * len(stages)
    for stage in stages:
        for number in stage.reads:
            readers[number] += 1
    runs: list[list[int]] = []
    for number, stage in enumerate(stages):
        follows = stage.parts[0].op in FOLLOWERS and stage.reads == [number - 1] and readers[number - 1] == 1
        if follows and runs:
            runs[-1].append(number)
        else:
            runs.append([number])
    joined = [
        replace(
            stages[run[0]],
            parts=[part for number in run for part in stages[number].parts],
            shape=stages[run[-1]].shape,
            parameters=[entry for number in run for entry in stages[number].parameters],
            kept=list(dict.fromkeys(name for number in run for name in stages[number].kept)),
        )
        for run in runs
    ]
    return _renumbered(joined, {number: place for place, run in enumerate(runs) for number in run})


def _without_repeats(stages: list[Stage]) -> list[Stage]:
    looks = [_look(stage, number) for number, stage in enumerate(stages)]
    seen: list[Stage] = []
    place: dict[int, int] = {}
    number = 0
    while number < len(stages):
        period, times = _repeat(looks, number)
        for offset in range(period):
            group = number if times > 1 else None
            seen.append(replace(stages[number + offset], repeats=times, group=group))
        for offset in range(period * times):
            place[number + offset] = len(seen) - period + offset % period
        number += period * times
    return _renumbered(seen, place)


def _look(stage: Stage, number: int) -> tuple[Any, ...]:
    """What two stages have in common that are the same but for their names."""
    parts = tuple((part.op, part.detail, tuple(part.backward)) for part in stage.parts)
    return parts, stage.shape, tuple(shape for _, shape, _ in stage.parameters), tuple(number - read for read in stage.reads)


def _repeat(looks: Sequence[Any], start: int) -> tuple[int, int]:
    """How many stages come again from here on, and how often they come in all: those that save most."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        times = 1
        while looks[start : start + period] == looks[start + times * period : start + (times + 1) * period]:
            times += 1
            if start + times * period >= len(looks):
                break
        if (times - 1) * period > (best[1] - 1) * best[0]:
            best = (period, times)
    return best


def _renumbered(stages: list[Stage], place: dict[int, int]) -> list[Stage]:
    """What a stage reads, by its new number; a repeat's own result is not shown as read by the first."""
    return [
        replace(stage, reads=sorted({place[read] for read in stage.reads if place[read] < number}))
        for number, stage in enumerate(stages)
    ]
