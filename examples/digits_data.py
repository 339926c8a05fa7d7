"""The handwritten digits of scikit-learn as float32 images for the examples: 1797 pictures of 8 x 8 pixels, ten classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

CLASSES = 10
SHADES = 16.0  # pixels are whole numbers from 0 to 16


@dataclass(frozen=True)
class Digits:
    """Images (N, 8, 8, 1), channels last, from 0 to 1, with their labels 0 to 9: one part to learn from, one to be judged by."""

    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels


def load(seed: int = 0, test_share: float = 0.25) -> Digits:
    """The digits, shuffled by the seed and split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("this example needs scikit-learn, for its digits: pip install 'pullback[examples]'") from None
    images, labels = load_digits(return_X_y=True)
    x = (images / SHADES).reshape(-1, 8, 8, 1).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    held_out, learned_from = np.split(order, [round(len(x) * test_share)])
    return Digits(x[learned_from], labels[learned_from], x[held_out], labels[held_out])


def batches(x: Images, y: Labels, size: int, seed: int) -> Iterator[tuple[Images, Labels]]:
    """All pairs once in a shuffled order, `size` at a time; the last batch may be smaller."""
    order = np.random.default_rng(seed).permutation(len(x))
    for start in range(0, len(x), size):
        part = order[start : start + size]
        yield x[part], y[part]
