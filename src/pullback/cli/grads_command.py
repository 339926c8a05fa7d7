"""`pullback grads`: the training graph of an ONNX model as a table, as an ONNX file and as a picture."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli.bench_options import add_theme, themed_files
from pullback.cli.console import print_table
from pullback.cli.output_files import check_written
from pullback.cli.train_files import need

if TYPE_CHECKING:
    from pullback.onnx.drawing.stages import Stage, Stages

GRADIENT = "_grad"
LOSS = "cross_entropy"
PARAMETER = f"parameter; its gradient is NAME{GRADIENT}"
EXAMPLES = """examples:
  pullback grads model.onnx                                   each node with its backward nodes and gradients
  pullback grads model.onnx --out grads.onnx                  the training graph, for any runtime that has its nodes
  pullback grads model.onnx --picture grads.svg               the same to look at; .png needs matplotlib
  pullback grads model.onnx --freeze 'layer1.*' --freeze bn1.*   gradients of the rest alone
  pullback grads model.onnx --loss mse
without a file, the network that pullback train trains on handwritten digits:
  pullback grads --picture digits.svg
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "grads",
        help="the training graph of an ONNX model: a table, an ONNX file, a picture",
        description="Differentiates an ONNX model and shows what its training graph computes: forward nodes, the backward nodes of "
        "each, parameters and the names of their gradients.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_options(parser)
    files = parser.add_argument_group("what to write")
    files.add_argument("--out", type=Path, metavar="FILE", help="the training graph as ONNX")
    files.add_argument("--picture", type=Path, metavar="FILE", help="the training graph as a .svg or .png picture")
    add_theme(files, "auto")
    parser.set_defaults(run=run)


def add_graph_options(parser: argparse.ArgumentParser) -> None:
    """The model, and what of it is differentiated: the options that `pullback train` has too."""
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="an ONNX file (default: a small CNN for digits)")
    parser.add_argument(
        "--loss",
        metavar="NAME",
        help=f"{LOSS} (default), soft_cross_entropy, mse, l1, huber, bce_with_logits, or a scalar output of the model",
    )
    parser.add_argument(
        "--train-only", action="append", metavar="PATTERN", help="train these parameters alone ('head.*'; may be repeated)"
    )
    parser.add_argument(
        "--freeze",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave these parameters as they are; wins over the other",
    )


def check_model(path: Path | None) -> None:
    """A ValueError for a file that is not there."""
    if path is not None and not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")


def chosen_model(path: Path | None, seed: int = 0) -> Any:
    """The model asked for; the network of the digits where none is."""
    from pullback.onnx import digits
    from pullback.onnx.model_files import load_model

    return digits.small_cnn(seed) if path is None else load_model(path)


def run(options: argparse.Namespace) -> int:
    from pullback.onnx.errors import OnnxError

    try:
        check_model(options.model)
        need("onnx")
        check_written([options.out, options.picture])
        if options.picture is not None:
            from pullback.pictures.files import check_suffix

            check_suffix(options.picture)
    except (ValueError, ImportError) as error:
        return _complain(error, 2)
    try:
        _show(options)
    except (OnnxError, ImportError) as error:
        return _complain(error, 1)
    return 0


def _show(options: argparse.Namespace) -> None:
    from pullback.onnx.drawing.layout import make_scene
    from pullback.onnx.drawing.stages import make_stages
    from pullback.onnx.graph.training_graph import training_graph
    from pullback.onnx.model_files import save_model
    from pullback.pictures.files import save_scene

    graph = training_graph(chosen_model(options.model), options.loss or LOSS, options.train_only, tuple(options.freeze))
    stages = make_stages(graph)
    if options.model is not None:  # exporters call every graph the same
        stages = replace(stages, name=options.model.name)
    print_table(_title(stages), ("forward", "makes", "backward", PARAMETER), _rows(stages.stages), texts=True)
    if options.out is not None:
        save_model(graph, options.out)
        print(f"training graph  {options.out}")
    if options.picture is not None:
        for theme, path in themed_files(options.picture, options.theme).items():
            save_scene(make_scene(stages), path, theme)
            print(f"picture         {path}")
    if options.out is None and options.picture is None:
        print("write it with --out grads.onnx, draw it with --picture grads.svg")


def _title(stages: Stages) -> str:
    return (
        f"training graph of {stages.name}: {stages.forward_nodes} forward and {stages.backward_nodes} backward nodes, "
        f"{stages.parameters} parameters of {stages.numbers:,} numbers"
    )


def _rows(stages: list[Stage]) -> list[tuple[str, str, str, str]]:
    """A line for each node; a further one for each parameter after the first."""
    from pullback.onnx.drawing.stages import counted

    rows = []
    for stage in stages:
        [part] = stage.parts
        names = [_parameter(*entry) for entry in stage.parameters] or [""]
        rows.append((f"{part.op} {part.detail}".rstrip(), stage.shape, counted(part.backward) or "none", names[0]))
        rows += [("", "", "", name) for name in names[1:]]
    return rows


def _parameter(name: str, shape: str, gradient: str) -> str:
    return f"{name}  {shape}" if gradient == name + GRADIENT else f"{name}  {shape}  gradient: {gradient}"


def _complain(error: object, status: int) -> int:
    print(f"pullback grads: {str(error).removeprefix('draw: ')}", file=sys.stderr)
    return status
