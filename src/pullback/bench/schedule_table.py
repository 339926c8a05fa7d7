"""The printed result of `pullback bench schedule`: speed-ups by number of threads, and how far predictions are off."""

from __future__ import annotations

from statistics import median

from pullback.bench.schedule import CHECKED, EFFICIENCY_BAR, LARGE_FLOP, SHOWN, THREADS, Row, Schedule
from pullback.bench.table import seconds_text
from pullback.bench.trust import load_warning

LEGEND = f"""jobs      pieces of each job of the call as it is cut for {SHOWN}; serial: of its time on one thread, what no job takes
speed-up  predicted time on one thread / on so many; workers that wait awake, and nothing shared but the claims
error     of the prediction with 1 and 2 threads, against calls that were measured
!         under {EFFICIENCY_BAR:.0%} of 16 (with {LARGE_FLOP // 10**6} MFLOP for each of 16 threads), or slower at 16 than at 8"""


def row_text(row: Row) -> str:
    jobs = "+".join(str(pieces) for pieces, _ in row.jobs)
    speedups = "".join(f"{row.speedup(count):6.1f}" for count in THREADS[1:])
    errors = "".join(f"{row.error(count):+7.0%}" if count in row.measured else " " * 7 for count in CHECKED)
    faults = row.faults()
    mark = "  ! " + ", ".join(faults) if faults else ""
    label = f"{row.op} {row.case} {row.layout.removeprefix('channels_')}"
    return f"{label:52} {seconds_text(row.predicted[1]):>9} {jobs:>12} {row.serial / row.predicted[1]:6.1%}{speedups}{errors}{mark}"


def print_schedule(schedule: Schedule) -> None:
    machine, costs = schedule.machine, schedule.costs
    if sentence := load_warning(machine):
        print(f"WARNING   {sentence}")
    if schedule.partial:
        print(f"PARTIAL   the run was broken off after {len(schedule.rows)} calls")
    print(f"machine   {machine['cpu']}, {machine['cores']} cores in reach, load {machine['load']}, {machine['date']}")
    told = {name: f"{getattr(costs, name) * 1e6:.2f}" for name in ("call", "join", "start", "wake", "claim")}
    print("costs     microseconds of a job: " + ", ".join(f"{name} {text}" for name, text in told.items()))
    counts = "".join(f"{count:6}" for count in THREADS[1:])
    print(f"{'call':52} {'1 thread':>9} {'jobs':>12} serial{counts}" + "".join(f" error {count}" for count in CHECKED))
    for row in schedule.rows:
        print(row_text(row))
    for count in CHECKED:
        errors = [abs(row.error(count)) for row in schedule.rows if count in row.measured]
        if errors:
            print(f"error     {count} thread{'s' * (count > 1)}: median {median(errors):.1%}, largest {max(errors):.0%}")
    large = [row for row in schedule.rows if row.is_large]
    faults = [row for row in schedule.rows if row.faults()]
    print(
        f"16        {len(faults)} of {len(schedule.rows)} calls miss a bar; {len(large)} are large enough for that of efficiency"
    )
    print(LEGEND)
