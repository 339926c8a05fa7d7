"""Two checkouts of pullback on the same cases, call by call in turn: whether speed and bits were kept.

    python tools/compare_versions.py ../before/src src [--op conv] [--layout channels_last] [--threads 2] [--rounds 7]

Each checkout runs in a process of its own; before either is timed, both have run the case once. Prints each case whose bits
differ or whose time is more than 5 % longer, then the geometric mean of time before / time after by op and layout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from itertools import product
from statistics import median


def serve() -> None:
    """A checkout: reads a task (JSON, one a line), answers with the hash of its result or with seconds."""
    from pullback.bench.cases import OPS, Task, load_cases
    from pullback.bench.data import make_data
    from pullback.bench.ours import Ours

    cases = {case.name: case for case in load_cases()}
    prepared, ours, known = None, Ours(), None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: object = None
        if asked["what"] == "tasks":
            answer = [
                (op, case.name, layout)
                for op, case, layout in product(OPS, cases.values(), ("channels_last", "channels_first"))
                if OPS[op][0] == case.kind
            ]
        elif asked["what"] == "prepare":
            op, name, layout = asked["task"]
            if known is None or known[0] != name:
                known = name, make_data(cases[name], asked["dtype"])
            prepared = ours.prepare(Task(op, cases[name], asked["dtype"], layout), known[1], asked["threads"])
            prepared.run()
            answer = hashlib.sha256(b"".join(array.tobytes() for array in prepared.result())).hexdigest()[:12]
        else:
            start = time.perf_counter()
            prepared.run()
            answer = time.perf_counter() - start
        print(json.dumps(answer), flush=True)


class Checkout:
    def __init__(self, source: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.path.abspath(source)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **what: object) -> object:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--op", default="")
    parser.add_argument("--layout", default="")
    parser.add_argument("--case", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    both = [Checkout(options.before), Checkout(options.after)]
    means: dict[tuple[str, str], list[tuple[float, float]]] = {}
    differ = 0
    for task in both[0].ask(what="tasks"):
        op, case, layout = task
        if (options.op and options.op != op) or options.layout not in layout or options.case not in case:
            continue
        hashes = [side.ask(what="prepare", task=task, dtype=options.dtype, threads=options.threads) for side in both]
        times: list[list[float]] = [[], []]
        spent = 0.0
        while len(times[0]) < options.rounds or (spent < 0.1 and len(times[0]) < 200):
            for side in (0, 1) if len(times[0]) % 2 else (1, 0):
                times[side].append(both[side].ask(what="time"))
                spent += times[side][-1]
        best, middle = min(times[0]) / min(times[1]), median(times[0]) / median(times[1])
        means.setdefault((op, layout), []).append((best, middle))
        if hashes[0] != hashes[1] or max(best, middle) < 0.95:
            differ += hashes[0] != hashes[1]
            print(
                f"{'BITS ' if hashes[0] != hashes[1] else ''}{op} {case} {layout}: best {best:.2f} median {middle:.2f}",
                flush=True,
            )
    for (op, layout), ratios in means.items():
        best, middle = (math.exp(sum(math.log(ratio[i]) for ratio in ratios) / len(ratios)) for i in (0, 1))
        print(f"{op:28} {layout:15} {len(ratios):3} cases  best {best:.3f}  median {middle:.3f}")
    print(f"{differ} cases with other bits")


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
