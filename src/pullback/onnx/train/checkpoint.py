"""Checkpoints: one .safetensors file with everything, written whole or not at all, and a readable .json beside it.

Tensors are named `model` (the graph's bytes), `parameter/<name>`, `running/<name>`, `optimizer/<state>/<name>` and `best/<name>`;
the file's metadata hold the rest as JSON.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pullback.onnx.atomic_file import write_atomically
from pullback.onnx.errors import OnnxError
from pullback.rules import Array

FORMAT = "pullback.onnx checkpoint"
VERSION = 1
MODEL = "model"
CHECKSUM = "crc32"


@dataclass(frozen=True)
class Checkpoint:
    """What a training run is made of. Arrays by group and name; `about` is what JSON can hold: settings, counters, history."""

    model: bytes
    arrays: Mapping[str, Mapping[str, Array]]
    about: Mapping[str, Any] = field(default_factory=dict)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(f"checkpoints need safetensors: pip install 'pullback[onnx]' ({error})", name="safetensors") from None
    return safetensors


def summary_path(path: Path) -> Path:
    """Where the readable summary of a checkpoint is."""
    return path.with_suffix(".json") if path.suffix == ".safetensors" else path.with_name(path.name + ".json")


def write_checkpoint(path: Path, checkpoint: Checkpoint, summary: Mapping[str, Any]) -> None:
    """Replace the file at `path`; where that fails, the one that was there is still whole."""
    tensors = {f"{group}/{name}": np.asarray(array, order="C")
               for group, arrays in checkpoint.arrays.items() for name, array in arrays.items()}  # fmt: skip
    tensors[MODEL] = np.frombuffer(checkpoint.model, np.uint8)
    about = {
        "format": FORMAT,
        "version": str(VERSION),
        "about": json.dumps(dict(checkpoint.about)),
        CHECKSUM: _checksum(tensors),
    }
    write_atomically(path, [_safetensors().numpy.save(tensors, about)], "the checkpoint")
    said = _strict({"format": FORMAT, "version": VERSION, "checkpoint": path.name, **summary})
    text = json.dumps(said, indent=2, allow_nan=False) + "\n"
    write_atomically(summary_path(path), [text.encode()], "the summary of the checkpoint")


def _checksum(tensors: Mapping[str, Array]) -> str:
    """A number that a flipped bit changes."""
    digest = 0
    for name in sorted(tensors):
        digest = zlib.crc32(tensors[name].reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), digest))
    return str(digest)


def _strict(value: Any) -> Any:
    """With null for what is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint as it was written; one error for a file that is not there, broken off, foreign or from a later version."""
    library = _safetensors()
    if not path.is_file():
        raise OnnxError(f"there is no checkpoint '{path}'")
    try:
        with library.safe_open(path, framework="numpy") as file:
            about = dict(file.metadata() or {})
            if about.get("format") != FORMAT:
                raise OnnxError(
                    f"'{path}' is a safetensors file, but no checkpoint of pullback.onnx: Trainer.save writes those"
                )
            if not about["version"].isdecimal() or int(about["version"]) > VERSION:
                raise OnnxError(
                    f"the checkpoint '{path}' has version {about['version']}; this pullback reads up to {VERSION}: "
                    "pip install -U pullback"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            if about.get(CHECKSUM, _checksum(tensors)) != _checksum(tensors):
                raise OnnxError(f"the checkpoint '{path}' is damaged: its numbers are not those that were written. Use a copy")
            return _checkpoint(tensors, json.loads(about["about"]))
    except (library.SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise OnnxError(
            f"'{path}' is no whole checkpoint, it was broken off or is another kind of file: {error or type(error).__name__}"
        ) from error


def _checkpoint(tensors: dict[str, Array], about: dict[str, Any]) -> Checkpoint:
    model = tensors.pop(MODEL).tobytes()
    arrays: dict[str, dict[str, Array]] = {}
    for key, array in tensors.items():
        group, _, name = key.partition("/")
        arrays.setdefault(group, {})[name] = array
    return Checkpoint(model, arrays, about)
