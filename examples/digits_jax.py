"""A small convolutional network on scikit-learn's digits, written in JAX with the convolutions and pooling of pullback.jax.

Run: python examples/digits_jax.py --epochs 5   (needs pip install 'pullback[jax]' scikit-learn)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import digits_data
import jax
import jax.numpy as jnp

import pullback.jax as pj

Parameters = dict[str, jax.Array]
RATE, MOMENTUM = 0.05, 0.9


def initial(seed: int) -> Parameters:
    """Weights drawn with the variance that keeps activations in range, biases of zero."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (2 * 2 * 32, digits_data.CLASSES)}
    parameters = {}
    for key, (name, shape) in zip(jax.random.split(jax.random.key(seed), len(shapes)), shapes.items(), strict=True):
        fan_in = jnp.prod(jnp.array(shape[:-1]))
        parameters[name] = jax.random.normal(key, shape) * jnp.sqrt(2 / fan_in)
        parameters[f"{name}_bias"] = jnp.zeros(shape[-1])
    return parameters


def logits(parameters: Parameters, x: jax.Array) -> jax.Array:
    """Scores of the ten classes: two convolutions, each with a maximum over 2 x 2 pixels, and a dense layer."""
    for layer in ("conv1", "conv2"):
        y = pj.conv(x, parameters[layer], bias=parameters[f"{layer}_bias"], padding="same")
        x = pj.max_pool(jax.nn.relu(y), 2)
    return x.reshape(x.shape[0], -1) @ parameters["dense"] + parameters["dense_bias"]


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Averaged over the batch."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


def loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    return cross_entropy(logits(parameters, x), labels)


@jax.jit
def step(state: tuple[Parameters, Parameters], x: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    """One step of gradient descent with momentum: the loss before it, and the parameters and their velocity after it."""
    parameters, velocity = state
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, velocity, gradients)
    return value, (jax.tree.map(jnp.add, parameters, velocity), velocity)


@jax.jit
def accuracy(state: tuple[Parameters, Parameters], x: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits(state[0], x).argmax(1) == labels).mean()


def train(state: Any, step: Callable[..., Any], accuracy: Callable[..., Any], options: argparse.Namespace) -> None:
    """Run steps from a first state, and report after each epoch the share of unseen digits that are read right."""
    digits = digits_data.load(options.seed)
    batch = min(options.batch, len(digits.train_x))
    right = 0.0
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        losses = []
        for x, labels in digits_data.batches(digits.train_x, digits.train_y, batch, options.seed + epoch):
            if len(x) < batch:
                break  # a step for the few that are left would be noise, and another shape to compile
            value, state = step(state, x, labels)
            losses.append(value)
        right = float(accuracy(state, digits.test_x, digits.test_y))
        seconds = time.perf_counter() - started
        print(f"epoch {epoch}: loss {jnp.stack(losses).mean():.3f}, {right:.1%} of unseen digits right, {seconds:.2f} s")
    print(f"final accuracy {right:.1%}")


def positive(text: str) -> int:
    """A count, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def options(description: str | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--epochs", type=positive, default=5, help="times through the training digits (default 5)")
    parser.add_argument("--batch", type=positive, default=64, help="digits in a step (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order (default 0)")
    return parser.parse_args()


def main() -> None:
    chosen = options(__doc__)
    parameters = initial(chosen.seed)
    train((parameters, jax.tree.map(jnp.zeros_like, parameters)), step, accuracy, chosen)


if __name__ == "__main__":
    main()
