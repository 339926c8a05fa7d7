"""A small convolutional network on scikit-learn's handwritten digits, trained with PyTorch on our kernels.

python examples/digits_torch.py
"""

from __future__ import annotations

import digits_data
import torch
from torch import nn

from pullback.torch import accelerate, explain


def network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64 * 16, digits_data.CLASSES))


def images(x: digits_data.Images) -> torch.Tensor:
    """(N, 8, 8, 1) as PyTorch has it, (N, 1, 8, 8)."""
    return torch.from_numpy(x).permute(0, 3, 1, 2)


def train(model: nn.Module, digits: digits_data.Digits, epochs: int) -> float:
    """Train, and return the share of unseen digits that are read right."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        for x, y in digits_data.batches(digits.train_x, digits.train_y, 128, epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images(x)), torch.from_numpy(y)).backward()
            optimizer.step()
    with torch.no_grad():
        found = model(images(digits.test_x)).argmax(1)
    return float((found == torch.from_numpy(digits.test_y)).float().mean())


def main() -> None:
    digits = digits_data.load()
    model = accelerate(network())
    print(explain(model, images(digits.train_x[:128])))
    print(f"read right: {train(model, digits, epochs=8):.1%} of the digits it had not seen")


if __name__ == "__main__":
    main()
