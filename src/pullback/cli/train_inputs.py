"""The data that `pullback train` is asked to learn from and to be judged by: the digits, arrays in files, or folders of images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pullback.cli.train_files import RequestError


def data_of(options: argparse.Namespace) -> tuple[Any, Any]:
    """Training data and held-out data (None where there are none), in the forms that `Trainer.fit` takes."""
    if options.model is None:
        from pullback.onnx import digits

        found = digits.load(options.seed)
        return (found.train_x, found.train_y), (found.valid_x, found.valid_y)
    data, valid = _opened(options.data, options), _opened(options.valid, options) if options.valid else None
    theirs, ours = getattr(valid, "class_names", None), getattr(data, "class_names", None)
    if theirs is not None and ours is not None and theirs != ours:
        odd = sorted(set(theirs) ^ set(ours))[0]
        raise RequestError(f"--valid has other classes than --data: the folder {odd!r} is in one of them alone")
    return data, valid


def _opened(paths: Sequence[Path], options: argparse.Namespace) -> Any:
    for path in paths:
        if not path.exists():
            raise RequestError(f"there is no file or folder {str(path)!r}")
    if len(paths) == 2:
        return tuple(paths)
    if not paths[0].is_dir():
        return paths[0]
    from pullback.onnx.train.images import ImageFolder

    given = {"size": options.size, "mean": options.mean, "std": options.std}
    return ImageFolder(paths[0], **{name: value for name, value in given.items() if value is not None})
