"""Training graphs in the real onnxruntime-training-cpu 1.19.2: they load, run, and give pullback's gradients.

    python tests/onnx_ort_training/compare.py PYTHON_WITH_ORT_TRAINING

Run with pullback and onnx installed. Writes each graph with its inputs and pullback's results to a folder, and has the other Python
(run_in_ort.py) run them. Whole networks, and every case of the rules whose nodes the runtime can have.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "with_onnx"))

import networks  # noqa: E402
import rule_cases  # noqa: E402

import pullback as pb  # noqa: E402
from pullback.onnx.executor.program import Program  # noqa: E402
from pullback.onnx.graph.description import describe  # noqa: E402
from pullback.onnx.graph.training_graph import training_graph  # noqa: E402

NEWEST_OPSET = 21  # of 1.19.2
CLASSES = 4
NETWORKS = {
    "lenet": networks.lenet,
    "vgg": networks.vgg,
    "vgg_norm": lambda **options: networks.vgg(norm=True, **options),
    "resnet18": lambda **options: networks.resnet18(size=64, **options),
    "net3d": networks.net3d,
}
# Nodes without a body in stock operators: 1.19.2 has no such operator, or none for the CPU.
OURS_ALONE = {"ResizeGrad", "PadGrad", "LpPoolGrad", "LRNGrad", "NegativeLogLikelihoodLossGrad", "ConvTransposeGrad"}
NEED_SIZES = {"MaxPoolGrad", "AveragePoolGrad"}  # in 1.19.2: with open ones it dies
# What 1.19.2 does wrong, or refuses, by itself.
DEFECTS = {
    "AveragePool19-2x4x5x6-kernel_shape[2,2]_dilations[2,1]": "AveragePoolGrad forgets dilations",
    "AveragePool17-1x2x4x3x5-kernel_shape[2,2,3]_auto_padSAME_UPPER": "AveragePoolGrad in 3-D assigns instead of adding",
    "LayerNormalization17-2x5x6_6_6-axis1": "LayerNormalization wants a scale of the whole normalised shape",
    "ReduceSum13-2x3x4-noop_with_empty_axes1": "ReduceSum without axes that is to do nothing fails",
    "Slice17-4x6_c_c_c_c-": "SliceGrad refuses negative steps",
}


def write(folder, name, graph, feeds):
    """A graph as 1.19.2 reads it, with what goes in and what pullback gives."""
    graph.ir_version = min(graph.ir_version, 10)
    onnx.save(graph, folder / f"{name}.onnx")
    results = Program(graph).run(feeds)
    arrays = {f"in:{key}": value for key, value in feeds.items()} | {f"out:{key}": value for key, value in results.items()}
    np.savez(folder / f"{name}.npz", **arrays)


def write_networks(folder):
    rng = np.random.default_rng(3)
    for name, build in NETWORKS.items():
        model = build(batch=8)
        shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
        graph = training_graph(model)
        x = rng.standard_normal(shape).astype(np.float32)
        target = rng.integers(0, CLASSES, shape[0])
        write(folder, f"network-{name}", graph, {"x": x, describe(graph).target: target})


def write_cases(folder):
    for number, case in enumerate(rule_cases.CASES):
        for dynamic in (False, True):
            if case.opset > NEWEST_OPSET or case.id in DEFECTS or (dynamic and case.fixed):
                continue
            model, feeds = rule_cases.model_of(case, dynamic, np.float32)
            trained = [f"p{i}" for i, given in enumerate(case.inputs) if isinstance(given, tuple)]
            graph = training_graph(model, "total", trainable=trained)
            ops = {node.op_type for node in graph.graph.node}
            if not ops & OURS_ALONE and not (dynamic and ops & NEED_SIZES):
                write(folder, f"{number:03d}-{case.op}{'-open' if dynamic else ''}", graph, feeds)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder, pb.backend("reference"):
        write_networks(Path(folder))
        write_cases(Path(folder))
        raise SystemExit(subprocess.run([sys.argv[1], str(HERE / "run_in_ort.py"), folder], check=False).returncode)


if __name__ == "__main__":
    main()
