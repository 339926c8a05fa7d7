"""The 1,797 handwritten digits that come with the package, and the small network that `pullback train` trains on them.

The images are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0, https://creativecommons.org/licenses/by/4.0. `digits.npz` holds them
as scikit-learn's `load_digits` gives them, unchanged but for the number type: uint8 `images` (1797, 8, 8) of 0 to 16, and `labels`.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from onnx import ModelProto

CLASSES = 10
SHADES = 16  # an image's values are 0 to 16
HELD_OUT = 0.25
CHANNELS = (16, 32, 64)  # of the three convolutions


class Digits(NamedTuple):
    """Images (N, 1, 8, 8) in float32 from 0 to 1 with their labels in int64: to learn from, and to be judged by."""

    train_x: npt.NDArray[np.float32]
    train_y: npt.NDArray[np.int64]
    valid_x: npt.NDArray[np.float32]
    valid_y: npt.NDArray[np.int64]


def load(seed: int = 0, held_out: float = HELD_OUT) -> Digits:
    """The digits, shuffled by the seed and split: a share of them is held out for judging."""
    with files("pullback.onnx").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images, labels = stored["images"], stored["labels"]
    x = (images[:, np.newaxis] / np.float32(SHADES)).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    judged, learned = np.split(order, [round(len(x) * held_out)])
    y = labels.astype(np.int64)
    return Digits(x[learned], y[learned], x[judged], y[judged])


def small_cnn(seed: int = 0) -> ModelProto:
    """Three convolutions with batch normalization, max and average pooling by 2 x 2, a dense layer; the batch is symbolic."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {}

    def normal(name: str, *shape: int) -> str:
        """Weights as large as keeps the size of what passes through them and a Relu."""
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def filled(name: str, size: int, value: float) -> str:
        weights[name] = np.full(size, value, np.float32)
        return name

    nodes: list[Any] = []
    current = "images"

    def add(op_type: str, name: str, *more: str, **attributes: Any) -> None:
        nonlocal current
        nodes.append(helper.make_node(op_type, [current, *more], [name], name=name, **attributes))
        current = name

    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    for number, (before, after) in enumerate(zip((1, *CHANNELS), CHANNELS, strict=False), 1):
        add(
            "Conv", f"conv{number}", normal(f"conv{number}.weight", after, before, 3, 3), pads=[1, 1, 1, 1], kernel_shape=[3, 3]
        )
        norm = f"norm{number}"
        statistics = (filled(f"{norm}.mean", after, 0), filled(f"{norm}.var", after, 1))
        add("BatchNormalization", norm, filled(f"{norm}.scale", after, 1), filled(f"{norm}.bias", after, 0), *statistics)
        add("Relu", f"relu{number}")
        if number > 1:
            add("MaxPool" if number == 2 else "AveragePool", f"pool{number - 1}", **window)
    add("Flatten", "flat")
    add("Gemm", "scores", normal("head.weight", CLASSES, CHANNELS[-1] * 2 * 2), filled("head.bias", CLASSES, 0), transB=1)

    shapes: dict[str, list[str | int]] = {"images": ["N", 1, 8, 8], "scores": ["N", CLASSES]}
    images, scores = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    initializers = [numpy_helper.from_array(weight, name) for name, weight in weights.items()]
    graph = helper.make_graph(nodes, "digits", [images], [scores], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pullback")
