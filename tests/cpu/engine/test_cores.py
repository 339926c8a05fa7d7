"""Results do not depend on how many cores a process may use: what is summed is cut by the problem alone."""

from __future__ import annotations

import os

import pytest
from cpu_calls import run_python

HASHES = """
import hashlib, json, os, sys
cores, pretended = map(int, sys.argv[1:])
if pretended:
    os.sched_getaffinity = lambda pid: set(range(cores))
else:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import numpy as np
import pullback as pb
from pullback import settings
if pretended:
    assert settings.cores() == cores
rng = np.random.default_rng(0)

def reals(*shape):
    return rng.standard_normal(shape).astype(np.float32)

CASES = {
    "depthwise": (1, (56, 56), 64, 64, 64, (3, 3)),
    "strided depthwise": (3, (31, 29), 20, 20, 20, (4, 3)),
    "grouped": (2, (30, 34), 24, 24, 6, (3, 3)),
    "direct": (2, (33, 35), 20, 33, 1, (3, 3)),
    "few channels": (1, (60, 62), 3, 20, 1, (5, 5)),
    "one axis": (1, (5000,), 4, 4, 4, (31,)),
    "three axes": (1, (10, 12, 14), 12, 12, 12, (3, 3, 3)),
    "winograd": (2, (40, 40), 64, 64, 1, (3, 3)),
}
found = {}
with pb.backend("cpu"), pb.threads(1):
    for name, (batch, size, c, m, groups, kernel) in CASES.items():
        stride = 2 if name.startswith("strided") else 1
        for layout in ("channels_last", "channels_first"):
            last = layout == "channels_last"
            x = reals(batch, *size, c) if last else reals(batch, c, *size)
            f = reals(*kernel, c // groups, m) if last else reals(m, c // groups, *kernel)
            options = {"padding": "same", "groups": groups, "layout": layout, "stride": stride}
            y = pb.conv(x, f, **options)
            dy = reals(*y.shape)
            for op, result in (
                ("conv", y),
                ("conv_grad_input", pb.conv_grad_input(dy, f, x.shape, **options)),
                ("conv_grad_filter", pb.conv_grad_filter(dy, x, f.shape, **options)),
            ):
                found[f"{op} {name} {layout}"] = hashlib.sha256(result.tobytes()).hexdigest()
print(json.dumps(found))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_bits_do_not_depend_on_cores() -> None:
    """One core and two, as the mask of the process says; and as many as a large machine has, as the library is told."""
    one, two, many = (run_python(HASHES, *arguments, timeout=600) for arguments in (("1", "0"), ("2", "0"), ("64", "1")))
    assert one.count("conv_grad_filter") == 16
    assert one == two
    assert one == many
