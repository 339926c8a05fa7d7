"""A folder of images as a data set: one folder a class, decoded by Pillow when a batch needs them. Needs the extra `images`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.read import Argument
from pullback.rules import Array
from pullback.settings import get_num_threads

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
IMAGE_AXES = 4


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("folders of images need Pillow: pip install 'pullback[images]'", name="PIL") from None
    return Image


@dataclass(frozen=True)
class ImageFolder:
    """Images under `path/<class>/`, at any depth; classes are numbered in the order of their names.

    Values are divided by 255; then `mean` is subtracted and the result divided by `std`, numbers or one per channel. `size`
    (height, width), `channels` and `input` are those of the model where they are not given.
    """

    path: Path
    size: tuple[int, int] | None = None
    channels: int | None = None
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    input: str = ""
    class_names: tuple[str, ...] = field(default=(), init=False)
    files: tuple[tuple[Path, int], ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        root = Path(self.path)
        if not root.is_dir():
            raise OnnxError(f"there is no folder '{root}'")
        classes = tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
        files = [
            (file, number)
            for number, name in enumerate(classes)
            for file in sorted((root / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES and file.is_file()
        ]
        if not files:
            raise OnnxError(f"the data set is empty: '{root}' has no images in folders, one for each class, such as cats/1.png")
        without = [name for number, name in enumerate(classes) if all(number != each for _, each in files)]
        if without:
            raise OnnxError(f"the class '{without[0]}' of '{root}' has no images; remove the folder or fill it")
        object.__setattr__(self, "path", root)
        object.__setattr__(self, "class_names", classes)
        object.__setattr__(self, "files", tuple(files))

    def fitted(self, specs: Mapping[str, Argument]) -> ImageFolder:
        """With the sizes that the model's input declares, where none are given."""
        _pillow()
        if len(specs) != 1:
            raise OnnxError(f"a folder of images feeds a model with one input; this one has {', '.join(specs)}")
        spec = next(iter(specs.values()))
        shape = spec.shape or ()
        if len(shape) != IMAGE_AXES:
            raise OnnxError(f"input '{spec.name}' has {len(shape)} axes; images need (batch, channels, height, width)")
        channels = self.channels or (shape[1] if isinstance(shape[1], int) else 3)
        size = self.size
        if size is None and isinstance(shape[2], int) and isinstance(shape[3], int):
            size = (shape[2], shape[3])
        if size is None:
            raise OnnxError(
                f"input '{spec.name}' takes images of any size: say which, as ImageFolder(path, size=(height, width))"
            )
        if channels not in MODES:
            raise OnnxError(f"input '{spec.name}' has {channels} channels; images have {', '.join(map(str, MODES))}")
        return replace(self, size=size, channels=channels, input=spec.name)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Some images as (rows, channels, height, width) in float32, and the numbers of their classes."""
        assert self.size is not None
        assert self.channels is not None
        with ThreadPoolExecutor(get_num_threads()) as pool:  # Pillow decodes without Python's lock
            pixels = np.stack(list(pool.map(self._read, [self.files[row][0] for row in rows])))
        shape = (-1, 1, 1)
        mean, std = (np.asarray(each, np.float32).reshape(shape) for each in (self.mean, self.std))
        values = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        return {self.input: values}, np.array([self.files[row][1] for row in rows], np.int64)

    def _read(self, file: Path) -> Array:
        image_module = _pillow()
        height, width = self.size or (0, 0)
        try:
            with image_module.open(file) as image:
                converted = image.convert(MODES[self.channels or 3])
                if converted.size != (width, height):
                    converted = converted.resize((width, height), image_module.Resampling.BILINEAR)
                pixels = np.asarray(converted, np.uint8)
        except (OSError, SyntaxError, ValueError) as error:
            raise OnnxError(f"'{file}' cannot be read as an image: {error}") from error
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
