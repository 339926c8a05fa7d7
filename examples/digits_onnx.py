"""Train an ONNX model on handwritten digits with pullback.onnx: a loop of one's own, then a fresh head on frozen layers.

Run: python examples/digits_onnx.py --save digits.onnx   (needs pip install 'pullback[onnx]')
`pullback train` does the first half from the shell, with a progress bar, curves and checkpoints.
"""

from __future__ import annotations

import argparse

import numpy as np

import pullback.onnx as px
from pullback.onnx import digits

BATCH = 32


def train(trainer: px.Trainer, data: digits.Digits, epochs: int, seed: int) -> float:
    """Steps in a shuffled order; the share of unseen digits read right."""
    rng, figures = np.random.default_rng(seed), {}
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(data.train_x))
        losses = [
            trainer.step(data.train_x[rows], data.train_y[rows]) for rows in np.split(order, range(BATCH, len(order), BATCH))
        ]
        figures = trainer.evaluate((data.valid_x, data.valid_y))
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, {figures['accuracy']:.1%} of unseen digits right", flush=True)
    return figures["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="an ONNX file to train further; images (N, 1, 8, 8) in, scores (N, 10) out")
    parser.add_argument("--save", default="digits.onnx", help="where the trained model is written (default digits.onnx)")
    parser.add_argument("--epochs", type=int, default=5, help="times through the training digits (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order (default 0)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    data = digits.load(options.seed)
    model = options.model or digits.small_cnn(options.seed)
    trainer = px.Trainer(model, loss="cross_entropy", optimizer=px.SGD(lr=0.05, momentum=0.9), seed=options.seed)
    print(f"final accuracy {train(trainer, data, options.epochs, options.seed):.1%}")
    trainer.export(options.save)
    print(f"wrote {options.save}")

    print("a fresh head that tells even from odd, the other layers frozen")
    parity = px.replace_head(options.save, classes=2, seed=options.seed)
    trainer = px.Trainer(parity, optimizer=px.AdamW(lr=1e-2), frozen=["conv*", "norm*"])
    train(trainer, data._replace(train_y=data.train_y % 2, valid_y=data.valid_y % 2), 1, options.seed)


if __name__ == "__main__":
    main()
