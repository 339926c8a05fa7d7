"""SGD, Adam and AdamW: settings with PyTorch's names, defaults and formulas; their state are arrays that the trainer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pullback.onnx.checks import number, without_numpy
from pullback.onnx.errors import OnnxError
from pullback.onnx.hints import hinted
from pullback.rules import Array
from pullback.training_kernels import adam_step, sgd_step


@dataclass(frozen=True)
class Optimizer:
    """What every optimizer has: a learning rate, the names of its state arrays, and the update of one parameter."""

    lr: float = 1e-3

    def __post_init__(self) -> None:
        self._check()
        without_numpy(self)

    def _check(self) -> None:
        number(type(self).__name__, "lr", self.lr)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Arrays that it keeps for each parameter, of the parameter's size, zero before the first step."""
        return ()

    def update(
        self, parameter: Array, gradient: Array, state: Sequence[Array], lr: float, step: int, scale: float = 1.0
    ) -> None:
        """Change a flat parameter and its flat state in place, by `scale` times the gradient; steps count from 1."""
        raise NotImplementedError


@hinted
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD."""

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def _check(self) -> None:
        super()._check()
        number("SGD", "momentum", self.momentum)
        number("SGD", "dampening", self.dampening, most=1.0)
        number("SGD", "weight_decay", self.weight_decay)
        if self.nesterov and (not self.momentum or self.dampening):
            raise OnnxError("SGD: nesterov=True needs momentum above 0 and dampening 0")

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def update(
        self, parameter: Array, gradient: Array, state: Sequence[Array], lr: float, step: int, scale: float = 1.0
    ) -> None:
        sgd_step(
            parameter,
            gradient,
            state[0] if state else None,
            lr=lr,
            momentum=self.momentum,
            dampening=self.dampening,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            first=step == 1,
            g_scale=scale,
        )


@hinted
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, as torch.optim.Adam: weight decay is a part of the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    _decoupled = False

    def _check(self) -> None:
        super()._check()
        who = type(self).__name__
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise OnnxError(f"{who}: betas is {self.betas!r}; it must be a pair of numbers such as (0.9, 0.999)")
        for i, beta in enumerate(self.betas):
            number(who, f"betas[{i}]", beta, most=1.0, open_end=True)
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))
        number(who, "eps", self.eps)
        number(who, "weight_decay", self.weight_decay)

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(
        self, parameter: Array, gradient: Array, state: Sequence[Array], lr: float, step: int, scale: float = 1.0
    ) -> None:
        adam_step(
            parameter,
            gradient,
            state[0],
            state[1],
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self._decoupled,
            step=step,
            g_scale=scale,
        )


@hinted
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay beside the gradient, as torch.optim.AdamW."""

    weight_decay: float = 1e-2

    _decoupled = True


OPTIMIZERS = {kind.__name__: kind for kind in (SGD, Adam, AdamW)}
