"""A differential fuzzer: random calls of every op on every cpu kernel, held against the reference backend (docs/testing.md).

cases (what a case is) · draws (a random one) · program (a case as Python source) · check (runs one and judges it, with compare) ·
runner (a child process that may crash or hang) · shrink (the smallest case that still fails) · campaign (many cases, a summary).
"""

import sys
from pathlib import Path

# The helpers of the other tests, found as pytest finds them.
TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
