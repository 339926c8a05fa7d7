"""What nodes need beside their inputs: random numbers that depend on seed and step alone, and sums over the ranks of a job."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pullback.onnx.executor.registry import Node
from pullback.rules import Array

PER_COUNT = 8  # float32 numbers that one count of the generator gives


@dataclass(frozen=True)
class Context:
    """`first_row`: the row of the whole batch that this rank's part begins with. `all_reduce`: the sum of an array over ranks."""

    seed: int = 0
    step: int = 0
    first_row: int = 0
    all_reduce: Callable[[Array], Array] | None = None

    def uniform(self, node: Node, shape: tuple[int, ...]) -> Array:
        """Numbers in [0, 1) of a node at this step; those of a row are the same whichever rank has the row."""
        per_row = int(np.prod(shape[1:], dtype=np.int64)) if shape else 1
        rows = shape[0] if shape else 1
        counts = -(-per_row // PER_COUNT)
        name = next((output for output in node.outputs if output), node.name)
        bits = np.random.Philox(key=[self.seed & (2**64 - 1), self.step << 32 | zlib.crc32(name.encode())])
        bits.advance(self.first_row * counts)
        numbers = np.random.Generator(bits).random((rows, counts * PER_COUNT), np.float32)
        return numbers[:, :per_row].reshape(shape)


ALONE = Context()
