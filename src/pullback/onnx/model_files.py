"""Reading and writing ONNX files: a model that may be changed, or one error that says what is wrong with the file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from pullback.extras import missing
from pullback.onnx.atomic_file import flush_folder, write_atomically
from pullback.onnx.errors import OnnxError
from pullback.shown import shown

try:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import checker, external_data_helper
except ImportError as error:
    raise missing(error, "onnx", "training ONNX models needs the package onnx") from error

OLDEST, NEWEST = 11, 23
IN_ONE_FILE = 2**31 - 2**20  # bytes: a message of protobuf has at most 2 GiB, and there is more in it than the weights
# The gradients of pools are in the standard domain, where only ONNX Runtime knows them; GroupNormalization of opset 18, which
# runtimes still run, counts as deprecated.
NOT_CHECKED = ("MaxPoolGrad", "AveragePoolGrad", "GroupNormalization")

ModelLike = Any  # a path, the bytes of a file, or a ModelProto


def load_model(source: ModelLike) -> onnx.ModelProto:
    """A copy of a model, with its external data read in; an OnnxError where it cannot be trained or run here."""
    from pullback.onnx.graph.folding import expand_operators, fold_constants  # which need this module
    from pullback.onnx.graph.sequences import write_out_sequences

    model = _read(source)
    _check_opset(model)
    if not model.graph.output:
        raise OnnxError("the model has no outputs, so there is nothing to run or to train: export it with some")
    if any(node.op_type == "If" for node in model.graph.node):
        fold_constants(model)
    _check_control_flow(model.graph)
    _check_rules(model)
    write_out_sequences(model)
    return expand_operators(model)


def _read(source: ModelLike) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        return model
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "these bytes")
    if not isinstance(source, str | os.PathLike):
        raise OnnxError(
            f"the model is {shown(source)}; it must be a path, the bytes of a file or a ModelProto. "
            "torch.onnx.export makes a file of a PyTorch model"
        )
    path = Path(source)
    if path.suffix == ".safetensors":
        raise OnnxError(f"'{path}' is a checkpoint, not an ONNX file: px.Trainer.load(path) reads it (pullback train --resume)")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise OnnxError(f"there is no file {path}") from error
    except OSError as error:
        raise OnnxError(f"the file {path} cannot be read: {error.strerror or error}") from error
    model = _parse(data, f"the file {path}")
    _read_external(model, path)
    return model


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise OnnxError(f"{what}: not an ONNX model, or one that was cut short ({len(data):,} bytes)") from error
    if not model.HasField("graph") or not model.graph.node:
        raise OnnxError(f"{what}: no ONNX model with nodes ({len(data):,} bytes)")
    return model


def _read_external(model: onnx.ModelProto, path: Path) -> None:
    """The data that lie in other files, each of which must be there and long enough."""
    for tensor in external_data_helper._get_all_tensors(model):
        if not external_data_helper.uses_external_data(tensor):
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        file = path.parent / where.get("location", "")
        end = int(where.get("offset", 0)) + int(where.get("length", 0))
        if not file.is_file():
            raise OnnxError(
                f"the model {path} keeps the weights '{tensor.name}' in the file {file}, which is not there: put it there"
            )
        if file.stat().st_size < end:
            raise OnnxError(
                f"the file {file} has {file.stat().st_size:,} bytes, but '{tensor.name}' of {path} ends at byte {end:,}: "
                "it was cut short, or belongs to another model"
            )
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise OnnxError(f"the external data of {path} cannot be read: {error}") from error


def _check_opset(model: onnx.ModelProto) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        raise OnnxError("the model does not say which version of ONNX's operators it uses (opset_import)")
    if not OLDEST <= versions[0] <= NEWEST:
        raise OnnxError(
            f"the model uses opset {versions[0]}; known are {OLDEST} to {NEWEST}. Export it with one of these, "
            "or convert it with onnx.version_converter"
        )


def _check_control_flow(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if any(attribute.type in (attribute.GRAPH, attribute.GRAPHS) for attribute in node.attribute):
            raise OnnxError(
                f"node '{node.name}' ({node.op_type}, output '{node.output[0]}'): control flow is not supported; "
                "export the model with the branch that is taken, or the loop, written out"
            )


def _check_rules(model: onnx.ModelProto) -> None:
    """What ONNX's own checker says of the model, without weights and nodes that it wrongly takes for errors."""
    looked_at = without_weights(model)
    apart = [node for node in looked_at.graph.node if node.op_type in NOT_CHECKED]
    for node in apart:
        looked_at.graph.node.remove(node)
    made = [name for node in apart for name in node.output if name]
    looked_at.graph.input.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in made)
    for value in looked_at.graph.output:  # of unknown rank, which runtimes allow
        value.type.tensor_type.shape.SetInParent()
    if not looked_at.graph.node:
        return
    try:
        checker.check_model(looked_at)
    except checker.ValidationError as error:
        raise OnnxError(f"the model breaks ONNX's rules: {str(error).strip()}") from error


def without_weights(model: onnx.ModelProto, largest: int = 1024) -> onnx.ModelProto:
    """A copy in which initializers of more bytes than `largest` are inputs, which have a type and a shape but no values."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = model.graph
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.input.extend(graph.input)
    light.graph.output.extend(graph.output)
    light.graph.value_info.extend(graph.value_info)
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.ByteSize() <= largest:
            light.graph.initializer.append(tensor)
        elif tensor.name not in given:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tuple(tensor.dims)))
    return light


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model; the file is the old one or the whole new one whatever happens, never a part.

    Weights of 2 GB and more, which one file of ONNX cannot hold, go to a file `<path>.data` beside it.
    """
    target = Path(path)
    size = sum(tensor.ByteSize() for tensor in model.graph.initializer)
    if size < IN_ONE_FILE:
        write_atomically(target, [model.SerializeToString()], "the model")
        return
    try:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        data = target.with_name(target.name + ".data")
        _with_external_data(copy, target, data)
    except OSError as error:
        raise OnnxError(f"the model could not be written to '{target}': {error.strerror or error}") from error


def _with_external_data(model: onnx.ModelProto, target: Path, data: Path) -> None:
    """The weights first, under a name of their own, so that a model never names data that are not there."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        onnx.save_model(model, str(Path(folder) / target.name), save_as_external_data=True, location=data.name)
        for name in (data.name, target.name):
            written = Path(folder) / name
            with written.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(written, target.parent / name)
    flush_folder(target.parent)
