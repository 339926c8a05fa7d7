"""A warning where the exporter has folded batch normalisations into convolutions: the model then trains without them."""

from __future__ import annotations

import re
import warnings

import onnx

from pullback.onnx.graph.untie import torch_scopes

OF_PROGRAMS, OF_TORCHSCRIPT = "_native_batch_norm", re.compile(r"onnx::Conv_\d+$")


def warn_of_folded_norms(model: onnx.ModelProto) -> None:
    """By what PyTorch's two exporters leave behind: the scope of the normalisation, or the made-up name of the new filter."""
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"] if model.producer_name == "pytorch" else []
    found = [
        node for node in convolutions if torch_scopes(node)[-1].startswith(OF_PROGRAMS) or OF_TORCHSCRIPT.match(node.input[1])
    ]
    if found:
        warnings.warn(
            f"the exporter has folded batch normalisations into {len(found)} convolutions, the first '{found[0].name}': the model "
            "trains without them. To keep them, export with training=torch.onnx.TrainingMode.TRAINING and "
            "do_constant_folding=False, or with dynamo=True and optimize=False",
            stacklevel=3,
        )
