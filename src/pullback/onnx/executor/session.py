"""Session: run a model, forward or training, on arrays by name, as ONNX Runtime's InferenceSession does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pullback.nearest import did_you_mean
from pullback.onnx.checks import array_of, whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.program import Program
from pullback.onnx.executor.read import Argument, argument
from pullback.onnx.model_files import load_model
from pullback.rules import Array
from pullback.shown import shown


class Session:
    """A model ready to run. Shapes may change from run to run; each new set of shapes is planned once.

    `seed` is that of Dropout and other random nodes, where the model has them in training mode; each run draws anew.
    """

    def __init__(self, model: Any, *, seed: int = 0) -> None:
        proto = load_model(model)
        self._program = Program(proto)
        self._inputs = {value.name: argument(value) for value in proto.graph.input}
        self._outputs = tuple(argument(value) for value in proto.graph.output)
        self._seed, self._runs = whole("Session", "seed", seed, 0), 0
        self._narrowed: dict[tuple[str, ...], Program] = {self._program.outputs: self._program}
        self._model = proto

    def get_inputs(self) -> list[Argument]:
        """The inputs that must be given."""
        return [self._inputs[name] for name in self._program.required]

    def get_outputs(self) -> list[Argument]:
        return list(self._outputs)

    def run(self, output_names: Sequence[str] | str | None, inputs: Mapping[str, Any]) -> list[Array]:
        """The outputs named (None: all), in order. Inputs by name; initializers that are inputs too may be given or left out."""
        asked = (output_names,) if isinstance(output_names, str) else output_names
        names = self._program.outputs if asked is None else tuple(asked)
        program = self._narrowed.get(names)
        if program is None:
            for name in names:
                if name not in self._program.outputs:
                    raise OnnxError(
                        f"there is no output {shown(name)}{did_you_mean(name, self._program.outputs, 'The outputs')}"
                    )
            program = self._narrowed[names] = Program(self._model, names)
        feeds = check_feeds(self._inputs, self._program.required, inputs)
        self._runs += 1
        results = program.run(feeds, context=Context(self._seed, self._runs))
        return [np.ascontiguousarray(results[name]).reshape(results[name].shape) for name in names]


def check_feeds(known: Mapping[str, Argument], required: Sequence[str], inputs: Any) -> dict[str, Array]:
    """The inputs as arrays, if there are all that are needed, of the declared types and sizes."""
    if not isinstance(inputs, Mapping):
        like = ", ".join(f"{name!r}: array" for name in required[:1])
        raise OnnxError(f"inputs must be a mapping of names to arrays, like {{{like}}}, not {shown(inputs)}")
    feeds = {}
    for name, value in inputs.items():
        if name not in known:
            raise OnnxError(f"there is no input {shown(name)}{did_you_mean(name, tuple(required), 'The inputs')}")
        feeds[name] = _checked(known[name], np.asarray(array_of(f"input '{name}'", value)))
    missing = [name for name in required if name not in feeds]
    if missing:
        raise OnnxError(f"input '{missing[0]}' is missing; the inputs are {', '.join(required)}")
    return feeds


def _checked(argument: Argument, array: Array) -> Array:
    if argument.dtype is not None and array.dtype != argument.dtype:
        raise OnnxError(
            f"input '{argument.name}' has dtype {array.dtype}; the model takes {argument.dtype}: use .astype(np.{argument.dtype})"
        )
    shape = argument.shape
    if shape is not None and (
        len(shape) != array.ndim or any(isinstance(size, int) and size != n for size, n in zip(shape, array.shape, strict=True))
    ):
        sizes = ", ".join(str(size) if size is not None else "any" for size in shape)
        raise OnnxError(f"input '{argument.name}' has shape {array.shape}; the model takes ({sizes})")
    return array
