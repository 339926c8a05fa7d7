"""`pullback train`: train an ONNX model, or with no arguments a small network on handwritten digits, and write what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.cli.console import print_table
from pullback.cli.grads_command import add_graph_options, chosen_model
from pullback.cli.output_files import check_written
from pullback.cli.train_files import Written, files_of, need_onnx
from pullback.cli.train_options import add_options, check_options, make_optimizer, make_schedule
from pullback.cli.train_progress import Display, figure

if TYPE_CHECKING:
    from pullback.onnx.train.trainer import Trainer

EXAMPLES = """examples:
  pullback train                                       a small CNN on 1,797 handwritten digits, in seconds
  pullback train model.onnx --data train.npz --valid valid.npz --epochs 20 --out trained.onnx
  pullback train model.onnx --data x.npy y.npy --loss mse --optimizer sgd --lr 0.01 --schedule step:5
  pullback train resnet18.onnx --data photos/train --valid photos/valid --classes 5 --freeze 'conv1.*' --freeze 'layer[123].*'
  pullback train model.onnx --data train.npz --valid valid.npz --epochs 100 --early-stopping 8 --checkpoint run.safetensors
  pullback train model.onnx --data train.npz --epochs 100 --checkpoint run.safetensors --resume     after a break
  mpiexec -n 4 pullback train model.onnx --data train.npz     each batch shared by 4 processes (pip install 'pullback[mpi]')

data: an .npz with x and y (or the model's own input names; images and labels do too), inputs and targets as two .npy files, or a
folder with a folder of images for each class (pip install 'pullback[images]'). Inputs have the model's shape, (N, C, H, W) for images.
What can be trained: pullback grads model.onnx. Exit status 1 if training failed, 2 for a bad request.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train an ONNX model on the CPU; without arguments a small network on handwritten digits",
        description="Trains an ONNX model and writes the trained model, a picture of the curves and a checkpoint.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_options(parser)
    add_options(parser)
    parser.set_defaults(run=run)
