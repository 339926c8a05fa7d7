"""Train a small convolutional network on handwritten digits with NumPy, autograd and pullback."""

from __future__ import annotations

import argparse
import time

import digits_data

import pullback as pb

try:
    import autograd.numpy as np
    from autograd import value_and_grad
except ImportError:
    raise SystemExit("this example needs autograd: pip install 'pullback[examples]'") from None

HELP = """
A network of two convolutions and one dense layer learns the 8 x 8 digits of scikit-learn, on the CPU, in seconds:

  conv 3x3, 16 channels -> relu -> max_pool 2 -> conv 3x3, 32 channels -> relu -> max_pool 2 -> dense -> 10 classes

It shows what training with pullback takes: write the network with the ops of pullback and autograd.numpy (`predict` below),
and autograd's value_and_grad gives the gradients. Nothing else in the program knows about convolution.

Needs: pip install 'pullback[examples]'
"""


def initial_weights(seed):
    """Filters (height, width, channels in, channels out), float32: so is then everything that is computed from them."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        fan_in = np.prod(shape[:-1])
        return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    zeros = [np.zeros(n, np.float32) for n in (16, 32, digits_data.CLASSES)]
    return [normal(3, 3, 1, 16), zeros[0], normal(3, 3, 16, 32), zeros[1], normal(2 * 2 * 32, digits_data.CLASSES), zeros[2]]


def predict(weights, x):
    """The network: a score for each class."""
    filter1, bias1, filter2, bias2, dense, bias3 = weights
    x = pb.max_pool(np.maximum(pb.conv(x, filter1, padding="same") + bias1, 0), 2)
    x = pb.max_pool(np.maximum(pb.conv(x, filter2, padding="same") + bias2, 0), 2)
    return x.reshape((len(x), -1)) @ dense + bias3


def loss(weights, x, labels):
    """Cross-entropy, averaged over the batch."""
    scores = predict(weights, x)
    scores = scores - np.max(scores, axis=1, keepdims=True)
    log_sums = np.log(np.sum(np.exp(scores), axis=1))
    return np.mean(log_sums - scores[np.arange(len(labels)), labels])


def accuracy(weights, x, labels):
    return float(np.mean(np.argmax(predict(weights, x), axis=1) == labels))


def train(epochs, seed=0, rate=0.03, momentum=0.9, batch=32):
    """Stochastic gradient descent with momentum; the accuracy on the digits that were held out."""
    digits = digits_data.load(seed)
    weights = initial_weights(seed)
    speeds = [np.zeros_like(w) for w in weights]
    value_and_gradients = value_and_grad(loss)
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        losses = []
        for x, labels in digits_data.batches(digits.train_x, digits.train_y, batch, seed=1000 * seed + epoch):
            value, gradients = value_and_gradients(weights, x, labels)
            speeds = [momentum * speed - rate * g for speed, g in zip(speeds, gradients, strict=True)]
            weights = [w + speed for w, speed in zip(weights, speeds, strict=True)]
            losses.append(value)
        seen = accuracy(weights, digits.test_x, digits.test_y)
        took = time.perf_counter() - start
        print(
            f"epoch {epoch:2d} of {epochs}: loss {np.mean(losses):.4f}, accuracy on unseen digits {seen:.2%}, {took:.1f} s",
            flush=True,
        )
    return accuracy(weights, digits.test_x, digits.test_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="how many times to go through the training digits (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first weights and the order (default 0)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    print(f"final accuracy {train(options.epochs, options.seed):.2%}")


if __name__ == "__main__":
    main()
