"""What a training run has seen: the loss and learning rate of each step, and the figures of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pullback.nearest import did_you_mean
from pullback.onnx.errors import OnnxError


@dataclass
class History:
    """`epochs`: a mapping for each finished epoch. `losses`, `rates`, `norms`: loss, learning rate, gradient norm of each step.

    `history["valid_loss"]` is the list of that figure over the epochs.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    stopped_early: bool = False

    def __getitem__(self, name: str) -> list[float]:
        known = list(dict.fromkeys(key for epoch in self.epochs for key in epoch))
        if name not in known:
            raise KeyError(f"no epoch has {name!r}{did_you_mean(name, known, 'Its figures')}")
        return [epoch.get(name, math.nan) for epoch in self.epochs]

    def watched(self, name: str, higher_is_better: bool) -> list[float]:
        """A figure of each epoch, turned so that lower is better; an epoch without it, or with NaN, counts for nothing."""
        sign = -1.0 if higher_is_better else 1.0
        values = [sign * epoch.get(name, math.nan) for epoch in self.epochs]
        return [math.inf if math.isnan(value) else value for value in values]

    def state(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"epochs": self.epochs, "losses": self.losses, "rates": self.rates, "norms": self.norms,
                "stopped_early": self.stopped_early}  # fmt: skip

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> History:
        try:
            return cls(**{name: state[name] for name in ("epochs", "losses", "rates", "norms", "stopped_early")})
        except KeyError as error:
            raise OnnxError(f"the checkpoint's history has no {error}") from None
