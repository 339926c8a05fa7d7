"""The network of digits_jax.py as modules of Equinox, whose convolutions and pooling are those of pullback.jax.

Run: python examples/digits_equinox.py --epochs 5   (needs pip install 'pullback[jax]' equinox scikit-learn)
"""

from __future__ import annotations

from typing import Any

import digits_data
import digits_jax
import jax
import jax.numpy as jnp

import pullback.jax as pj

try:
    import equinox as eqx
except ImportError:
    raise SystemExit("this example needs Equinox: pip install 'pullback[jax]' equinox scikit-learn") from None


class Conv(eqx.Module):
    """A convolution of one image (height, width, channels). A mapped one is still one call: vmap makes a batch of the images."""

    filter: jax.Array
    bias: jax.Array

    def __init__(self, channels_in: int, channels_out: int, size: int, *, key: jax.Array) -> None:
        shape = (size, size, channels_in, channels_out)
        self.filter = jax.random.normal(key, shape) * jnp.sqrt(2 / (size * size * channels_in))
        self.bias = jnp.zeros(channels_out)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return pj.conv(x[None], self.filter, bias=self.bias, padding="same")[0]


class MaxPool(eqx.Module):
    """The maximum over windows of one image; the window is no array, and so Equinox keeps it out of the gradients."""

    window: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return pj.max_pool(x[None], self.window)[0]


def network(seed: int) -> eqx.nn.Sequential:
    """Scores of the ten classes for one image: our modules beside those of Equinox."""
    first, second, third = jax.random.split(jax.random.key(seed), 3)
    relu = eqx.nn.Lambda(jax.nn.relu)
    return eqx.nn.Sequential(
        [
            Conv(1, 16, 3, key=first),
            relu,
            MaxPool(2),
            Conv(16, 32, 3, key=second),
            relu,
            MaxPool(2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(2 * 2 * 32, digits_data.CLASSES, key=third),
        ]
    )


def loss(model: eqx.nn.Sequential, x: jax.Array, labels: jax.Array) -> jax.Array:
    return digits_jax.cross_entropy(jax.vmap(model)(x), labels)


@eqx.filter_jit
def step(state: Any, x: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    """One step of gradient descent with momentum: the loss before it, and the network and its velocity after it."""
    model, velocity = state
    value, gradients = eqx.filter_value_and_grad(loss)(model, x, labels)
    velocity = jax.tree.map(lambda v, g: digits_jax.MOMENTUM * v - digits_jax.RATE * g, velocity, gradients)
    return value, (eqx.apply_updates(model, velocity), velocity)


@eqx.filter_jit
def accuracy(state: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    return (jax.vmap(state[0])(x).argmax(1) == labels).mean()


def main() -> None:
    chosen = digits_jax.options(__doc__)
    model = network(chosen.seed)
    velocity = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    digits_jax.train((model, velocity), step, accuracy, chosen)


if __name__ == "__main__":
    main()
