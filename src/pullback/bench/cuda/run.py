"""The run of the cuda benchmark: every case, op, dtype and layout; results checked against PyTorch's; losing rows too."""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pullback.bench.cuda import participants as make
from pullback.bench.cuda.cases import CASES, CudaCase
from pullback.bench.cuda.timing import copy_rate, take_turns
from pullback.torch.arrays import FIRST, LAST

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What results may differ by, by norm: PyTorch itself takes tf32 products for float32 convolutions.
TOLERANCE = {"float32": 2e-3, "bfloat16": 1e-2}


def rows(names: Sequence[str], dtypes: Sequence[str], ops: Sequence[str], compile_pools: bool) -> Iterator[dict[str, Any]]:
    for case in CASES:
        if names and not any(name in case.name for name in names):
            continue
        for dtype in dtypes:
            for layout in (LAST, FIRST):
                data = make.Data(case, layout, DTYPES[dtype])
                for op in case.ops:
                    if not ops or op in ops:
                        yield row(case, op, dtype, layout, data, compile_pools)
                del data
                torch.cuda.empty_cache()


def row(case: CudaCase, op: str, dtype: str, layout: str, data: make.Data, compile_pools: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"case": case.name, "family": case.family, "op": op, "dtype": dtype, "layout": layout}
    try:
        runs = {"ours": make.ours(data, op), "eager": make.pytorch(data, op)}
        got, want = make.as_pytorch(data, op, runs["ours"]()), make.last_of(runs["eager"]())
        made["error"] = apart(got, want)
        if not made["error"] <= TOLERANCE[dtype] and layout == LAST:  # then PyTorch's other layout is asked who is right
            other = make.last_of(make.pytorch(data.in_layout(FIRST), op)())
            made["error"], made["peer_error"] = apart(got, other), apart(want, other)
        made["wrong"] = not made["error"] <= TOLERANCE[dtype]
        del got, want
        if case.family == "pool" and compile_pools:
            try:
                torch._dynamo.reset()  # it leaves a function eager that it has compiled for too many shapes
                runs["compile"] = make.compiled(data, op)
                runs["compile"]()
            except Exception as error:
                runs.pop("compile", None)
                made["no_compile"] = repr(error)[:200]
        times = take_turns(runs)
    except Exception as error:
        made["failed"] = repr(error)[:600]
        return made
    item = DTYPES[dtype].itemsize
    made |= {f"{name}_ms": median for name, (median, _) in times.items()} | {
        f"{name}_best": best for name, (_, best) in times.items()
    }
    peers = [median for name, (median, _) in times.items() if name != "ours"]
    made["ratio"] = min(peers) / times["ours"][0]
    made["rate"] = case.bytes_of(op, item) / times["ours"][0] / 1e9  # TB/s
    made["flops"] = case.flop(op) / times["ours"][0] / 1e9  # TFLOP/s
    return made


def apart(got: torch.Tensor, want: torch.Tensor) -> float:
    """The distance of two results, by norm."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def line(made: dict[str, Any], copy: float) -> str:
    label = f"{made['case']:<14} {made['op']:<17} {made['dtype']:<9} {made['layout']:<15}"
    if "failed" in made:
        return f"{label} failed: {made['failed']}"
    compiled = f"{made['compile_ms']:8.3f}" if "compile_ms" in made else "       -"
    notes = " WRONG" if made["wrong"] else f" (PyTorch errs by {made['peer_error']:.0%})" if "peer_error" in made else ""
    return (
        f"{label} {made['ours_ms']:8.3f} {made['eager_ms']:8.3f} {compiled} {made['ratio']:6.2f} {made['rate']:6.2f} "
        f"{made['rate'] * 1e12 / copy:5.0%} {made['flops']:6.1f} {made['error']:.0e}{notes}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pullback bench --device cuda", description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of names")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--op", action="append")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("pullback bench --device cuda: there is no NVIDIA GPU here that PyTorch can use")
    torch.backends.cudnn.benchmark = True
    copy = copy_rate()
    import triton

    device, python = torch.cuda.get_device_name(), platform.python_version()
    print(f"{device}, torch {torch.__version__}, triton {triton.__version__}, Python {python}")
    print(
        f"copy {copy / 1e12:.2f} TB/s; rate: the least bytes an op must move, by its time; ratio: PyTorch's best time by ours"
    )
    print(
        "case           op                dtype     layout              ours    eager  compile  ratio   TB/s  copy TFLOP/s error"
    )
    found = []
    for made in rows(given.cases, given.dtype or list(DTYPES), given.op or (), not given.no_compile):
        found.append(made)
        print(line(made, copy), flush=True)
    for family in dict.fromkeys(made["family"] for made in found):
        for dtype in DTYPES:
            ratios = [m["ratio"] for m in found if m["family"] == family and m["dtype"] == dtype and "ratio" in m]
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                print(f"{family:<10} {dtype:<9} {len(ratios):3} rows, geometric mean {mean:.2f}, worst {min(ratios):.2f}")
    if given.json:
        given.json.write_text(json.dumps({"device": device, "torch": torch.__version__, "copy": copy, "rows": found}))
