"""Element type and shape of a tensor, as far as they are known before the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto, ValueInfoProto, helper

Dim = int | str | None  # a size, the name of one that the run decides, or nothing known
Shape = tuple[Dim, ...]
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor before it is computed: element type and shape, None where the rank is open."""

    dtype: int
    shape: Shape | None

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS

    def value_info(self, name: str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, self.dtype, self.shape)


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of an elementwise result, as far as it is known."""
    if None in shapes:
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max(map(len, known))
    sizes = zip(*((1,) * (rank - len(shape)) + shape for shape in known), strict=True)
    return tuple(_dim([size for size in column if size != 1]) for column in sizes)


def _dim(sizes: list[Dim]) -> Dim:
    """The one that numbers agree on; an open size only where it stands alone, as it may be 1."""
    numbers = [size for size in sizes if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return 1 if not sizes else sizes[0] if len(set(sizes)) == 1 else None
