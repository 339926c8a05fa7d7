"""Run every graph of a folder in ONNX Runtime and compare with the results beside it; see compare.py. Needs onnxruntime, NumPy."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

TOLERANCE = 2e-4  # relative to the largest entry: both sides compute in float32


def differences(path):
    """By output, how far ONNX Runtime is off; an error as text."""
    data = np.load(path.with_suffix(".npz"))
    feeds = {key[3:]: data[key] for key in data.files if key.startswith("in:")}
    expected = {key[4:]: data[key] for key in data.files if key.startswith("out:")}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = dict(zip(expected, session.run(list(expected), feeds), strict=True))
    off = {}
    for name, array in expected.items():
        if results[name].shape != array.shape:
            return f"{name} has shape {results[name].shape}, not {array.shape}"
        largest = float(np.abs(array).max()) if array.size else 0.0
        off[name] = float(np.abs(results[name] - array).max()) / max(largest, 1e-3) if array.size else 0.0
    return off


def main():
    onnxruntime.set_default_logger_severity(4)
    wrong = 0
    paths = sorted(Path(sys.argv[1]).glob("*.onnx"))
    for path in paths:
        try:
            off = differences(path)
        except Exception as error:  # ONNX Runtime's own classes, all to be shown
            off = str(error).splitlines()[0][:300]
        if isinstance(off, str):
            wrong += 1
            print(f"FAILED {path.stem}: {off}")
            continue
        worst = max(off, key=off.get)
        bad = not off[worst] <= TOLERANCE
        wrong += bad
        if bad or path.stem.startswith("network"):
            print(f"{'FAILED' if bad else 'same'} {path.stem}: {len(off)} outputs, furthest {worst} by {off[worst]:.1e}")
    print(f"{len(paths) - wrong} of {len(paths)} graphs give the same in onnxruntime {onnxruntime.__version__}")
    raise SystemExit(1 if wrong or not paths else 0)


if __name__ == "__main__":
    main()
