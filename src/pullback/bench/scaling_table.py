"""The printed result of `pullback bench scaling`: time per unit of work along each axis, and the speed-up by threads."""

from __future__ import annotations

from pullback.bench.cases import OPS
from pullback.bench.scaling import SPEEDUP_BAR, Point, Scaling
from pullback.bench.table import LIMIT, print_machine, ratio_text, seconds_text, share_text
from pullback.bench.trust import busy_summary
from pullback.cli.console import print_table

PER_WORK = (
    "per work  time for a unit of work relative to the largest step: 1 is perfect, 2 means that the small one pays double"
)
SPEEDUP = "speed-up  time with one thread / time with all, on the largest step of each axis; ! under {bar:.2f}"


def rate_text(point: Point, threads: int) -> str:
    return f"{point.rate(threads):.1f} {'GFLOP/s' if OPS[point.op][0] == 'conv' else 'GB/s'}"


def limit_text(point: Point, threads: int) -> str:
    limit = point.limit_rate
    return share_text(point.rate(threads) / limit if limit else None) + (" busy" if point.busy else "")


def step_rows(scaling: Scaling, op: str) -> list[list[str]]:
    threads = scaling.threads
    return [
        [
            axis, str(p.value), seconds_text(p.seconds(threads)), rate_text(p, threads), ratio_text(scaling.cost(p)),
            limit_text(p, threads),
        ]
        for (name, axis), points in scaling.series().items()
        if name == op
        for p in points
    ]  # fmt: skip


def speedup_rows(scaling: Scaling) -> list[list[str]]:
    lines = []
    for point in scaling.points:
        speedup = scaling.speedup(point)
        if speedup is not None:
            times = [seconds_text(point.seconds(count)) for count in (1, scaling.threads)]
            mark = "!" if scaling.is_slow(speedup) else ""
            lines.append([point.op, f"{point.axis} {point.value}", *times, ratio_text(speedup) + mark])
    return lines


def print_scaling(scaling: Scaling) -> None:
    machine, settings = scaling.machine, scaling.settings
    print_machine(machine, f"{len(scaling.points)} points" if scaling.partial else "")
    print("settings  threads {threads}, {layout}, {dtype}, backend {backend}".format(**settings))
    for op in dict.fromkeys(point.op for point in scaling.points):
        print_table(op, ("axis", "value", "time", "rate", "per work", "limit"), step_rows(scaling, op))
    if lines := speedup_rows(scaling):
        header = ("op", "largest", "1 thread", f"{scaling.threads} threads", "speed-up")
        mean = ["geometric mean", "", "", "", ratio_text(scaling.mean_speedup())]
        print_table(f"from 1 to {scaling.threads} threads", header, [*lines, mean])
        if machine["cores"] < scaling.threads:
            print(
                f"note      only {machine['cores']} of the cores are in reach, so that {scaling.threads} threads must share them"
            )
        print(SPEEDUP.format(bar=SPEEDUP_BAR * scaling.threads))
    print(PER_WORK)
    print(LIMIT)
    if busy := sum(point.busy for point in scaling.points):
        print(busy_summary(busy, len(scaling.points), "points"))
