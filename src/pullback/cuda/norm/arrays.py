"""`batch_norm` and its gradient on arrays in the memory of a GPU, of any library: what ops/batch_norm.py hands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pullback.cuda.arrays import as_theirs, tensors_of
from pullback.cuda.call import stand_in
from pullback.cuda.launch import on_device
from pullback.cuda.norm import batch
from pullback.cuda.norm.plan import Activation, Channels, sums_of
from pullback.ops.batch_norm import PER_CHANNEL, Rules, check

OF_CHANNELS = 1  # axes of those arrays


class _Given:
    """The tensors of a call with their channels second, those of channels in the type of sums."""

    def __init__(self, op: str, arrays: Mapping[str, Any], eps: Any, activation: Any, layout: str) -> None:
        self.arrays = arrays
        self.tensors: dict[str, torch.Tensor] = tensors_of(op, arrays, OF_CHANNELS)
        self.rules: Rules = check(
            op, {name: stand_in(tensor) for name, tensor in self.tensors.items()}, eps, activation, layout
        )
        x = self.tensors["x"]
        wide = sums_of(x.dtype)
        self.ready = {
            name: tensor.to(wide).contiguous() if name in PER_CHANNEL else tensor.contiguous().movedim(self.rules.channel, 1)
            for name, tensor in self.tensors.items()
        }
        last, channels = self.rules.channel == x.ndim - 1, x.shape[self.rules.channel]
        shape = (
            (x.numel() // max(channels, 1), channels, 1)
            if last
            else (x.shape[0], channels, x[0, 0].numel() if x.numel() else 0)
        )
        kind = Activation("" if self.rules.activation is None else "relu", self.rules.top or 0.0)
        self.what = Channels(
            *shape, x.dtype, last, wide, activation=kind, adds="add" in arrays, batch="mean" not in arrays, eps=self.rules.eps
        )

    def statistics(self) -> torch.Tensor:
        x, shift = self.ready["x"], self.ready["bias"]
        if self.what.batch:
            return batch.batch_statistics(self.what, x, shift)
        return batch.given_statistics(self.what, x, shift, self.ready["mean"], self.ready["variance"])

    def normalized(self, found: torch.Tensor) -> torch.Tensor:
        return batch.normalize(self.what, self.ready["x"], found, self.ready["scale"], self.ready.get("add"))

    def theirs(self, tensor: torch.Tensor) -> Any:
        """A result of x's shape, or one number for each channel, as an array like x."""
        return as_theirs(self.arrays["x"], tensor.movedim(1, self.rules.channel) if tensor.ndim > 1 else tensor)


def batch_norm(arrays: Mapping[str, Any], eps: Any, activation: Any, layout: str, return_statistics: bool) -> Any:
    given = _Given("batch_norm", arrays, eps, activation, layout)
    x = given.ready["x"]
    with on_device(x):
        if not x.numel():
            y, mean, variance = torch.empty_like(x), given.ready["mean"], given.ready["variance"]
        else:
            found = given.statistics()
            y, (mean, variance) = given.normalized(found), found[:2]
        if not return_statistics:
            return given.theirs(y)
        if not given.what.batch:
            mean, variance = (given.tensors[name].clone() for name in ("mean", "variance"))
        return given.theirs(y), given.theirs(mean), given.theirs(variance)


def batch_norm_grad(arrays: Mapping[str, Any], eps: Any, activation: Any, layout: str) -> tuple[Any, ...]:
    given = _Given("batch_norm_grad", arrays, eps, activation, layout)
    x, scale = given.ready["x"], given.ready["scale"]
    of = [name for name in ("x", "scale", "bias", "add") if name in arrays]
    with on_device(x):
        if not x.numel():
            return tuple(as_theirs(arrays["x"], torch.zeros_like(given.tensors[name])) for name in of)
        found = given.statistics()
        active = given.what.activation.kind != ""
        y = given.normalized(found) if active and given.what.adds else None
        what = given.what._replace(adds=y is not None)
        dx, sums, masked = batch.gradients(what, given.ready["dy"], x, y, found, scale)
        dadd = masked if active else masked.clone()  # which is the caller's dy
        made = {"x": dx, "scale": sums[1], "bias": sums[0], "add": dadd}
        return tuple(given.theirs(made[name].to(given.tensors[name].dtype)) for name in of)
