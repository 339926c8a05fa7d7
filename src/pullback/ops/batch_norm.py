"""Batch normalization with what follows it in a network, a residual sum and a ReLU, and its gradient: validation, dispatch.

y = activation((x - mean) / sqrt(variance + eps) * scale + bias + add), statistics and parameters one number for each channel
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pullback import training_kernels as kernels
from pullback.ops.arguments import as_float_array, as_layout, check_shape, layout_of, one_of
from pullback.ops.foreign_arrays import any_device_array
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.lp_pool import wide
from pullback.rules import Array
from pullback.shown import shown
from pullback.tracing import any_traced

PER_CHANNEL = ("scale", "bias", "mean", "variance")
TOPS = {None: None, "relu": None, "relu6": 6.0}  # of the activations: what they end at


class Rules(NamedTuple):
    """What a call says beside its arrays."""

    eps: float
    activation: str | None
    channel: int  # the channels' axis

    @property
    def top(self) -> float | None:
        return TOPS[self.activation]


def named(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """The arguments of a call that are arrays, without those that were left out."""
    return {**required, **{name: value for name, value in optional.items() if value is not None}}


def check(op: str, arrays: Mapping[str, Any], eps: Any, activation: Any, layout: str) -> Rules:
    """The rules of a call whose arrays (anything with a shape and a dtype) go together."""
    x = arrays["x"]
    if not 2 <= x.ndim <= 5:
        raise ValueError(
            f"{op}: x has shape {tuple(x.shape)}; it needs 2 to 5 axes (batch, channels and at most 3 spatial axes)"
        )
    kind = as_layout(op, layout, 0) if x.ndim == 2 else layout_of(op, layout, "x", x.shape)
    channel = x.ndim - 1 if kind == "channels_last" else 1
    channels = x.shape[channel]
    for name, array in arrays.items():
        of_channels = name in PER_CHANNEL
        if of_channels:
            check_shape(op, name, array.shape, (channels,), f"one number for each of the {channels} channels of x {x.shape}")
        else:
            check_shape(op, name, array.shape, x.shape, "the shape of x")
        if array.dtype != x.dtype and not (of_channels and x.dtype.itemsize == 2 and array.dtype == np.float32):
            raise TypeError(f"{op}: {name} is {array.dtype} but x is {x.dtype}; convert one so that they agree")
    if ("mean" in arrays) != ("variance" in arrays):
        given, left_out = ("mean", "variance") if "mean" in arrays else ("variance", "mean")
        raise ValueError(f"{op}: {given} is given without {left_out}; pass both, or neither for the statistics of the batch")
    if "mean" not in arrays and 0 in x.shape:
        raise ValueError(f"{op}: x {x.shape} has no elements to take statistics of; pass mean and variance")
    one_of(op, "activation", activation, tuple(TOPS))
    return Rules(_as_eps(op, eps), activation, channel)


def _as_eps(op: str, eps: Any) -> float:
    try:
        number = math.nan if isinstance(eps, (bool, np.bool_, str, bytes)) else float(eps)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{op}: eps is {shown(eps)}; it must be a finite number, not below 0")
    return number


def formula(xp: Any, arrays: Mapping[str, Any], rules: Rules) -> tuple[Any, Any, Any]:
    """(y, mean, variance) in the words of a library that differentiates them, `autograd.numpy` or `jax.numpy`."""
    x = wide(arrays["x"])
    axes, shape = tuple(axis for axis in range(x.ndim) if axis != rules.channel), [1] * x.ndim
    shape[rules.channel] = -1
    shaped: dict[str, Any] = {name: xp.reshape(wide(arrays[name]), shape) for name in PER_CHANNEL if name in arrays}
    if "mean" in shaped:
        mean, variance = shaped["mean"], shaped["variance"]
    else:
        mean = xp.mean(x, axis=axes, keepdims=True)
        variance = xp.mean((x - mean) ** 2, axis=axes, keepdims=True)
    y = (x - mean) / xp.sqrt(variance + rules.eps) * shaped["scale"] + shaped["bias"]
    if "add" in arrays:
        y = y + wide(arrays["add"])
    if rules.activation is not None:
        y = xp.where(y <= 0, 0, y)  # without a gradient at 0
    if rules.top is not None:
        y = xp.where(y >= rules.top, rules.top, y)
    return y.astype(arrays["x"].dtype), xp.reshape(mean, (-1,)), xp.reshape(variance, (-1,))


def _prepared(op: str, arrays: Mapping[str, Any], eps: Any, activation: Any, layout: str) -> tuple[dict[str, Any], Rules]:
    given = {name: value if any_traced([value]) else as_float_array(op, name, value) for name, value in arrays.items()}
    return given, check(op, given, eps, activation, layout)


def _for_kernels(arrays: Mapping[str, Array], rules: Rules) -> tuple[dict[str, Array], bool]:
    """The arrays with their channels second, in a dtype of the kernels, and both statistics with inv_std; whether of the batch."""
    ready = {
        name: wide(array if name in PER_CHANNEL else np.moveaxis(array, rules.channel, 1)) for name, array in arrays.items()
    }
    of_batch = "mean" not in ready
    if of_batch:
        found = kernels.training_statistics(ready["x"], rules.eps)
        ready |= dict(zip(("mean", "variance", "inv_std"), found, strict=True))
    else:
        ready["inv_std"] = kernels.inverse_std(ready["variance"], rules.eps)
    return ready, of_batch


def _normalized(ready: Mapping[str, Array], rules: Rules) -> Array:
    return kernels.normalize(
        ready["x"], ready["mean"], ready["inv_std"], ready["scale"], ready["bias"], relu=rules.activation is not None,
        add=ready.get("add"), top=rules.top,
    )  # fmt: skip


def _like(result: Array, rules: Rules, dtype: np.dtype[Any]) -> Array:
    """A result of the kernels in the layout and the dtype of the call."""
    return np.moveaxis(result, 1, rules.channel).astype(dtype, copy=False)


@with_hints
def batch_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    mean: npt.ArrayLike | None = None,
    variance: npt.ArrayLike | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    add: npt.ArrayLike | None = None,
    layout: str = DEFAULT_LAYOUT,
    return_statistics: bool = False,
) -> Any:
    """Each channel normalized, scaled and shifted; then plus `add`, then through an activation, in the same pass.

    **Formula.** `y[n, i, c] = act((x[n, i, c] - mean[c]) / sqrt(variance[c] + eps) * scale[c] + bias[c] + add[n, i, c])`,
    where act(v) is v, with "relu" max(v, 0), with "relu6" min(max(v, 0), 6).

    **Shapes.** x is `(N, *size, C)` in channels_last and `(N, C, *size)` in channels_first, of up to three spatial axes or of
    none; add and y as x; scale, bias, mean and variance are `(C,)`.

    **Rules.** Without mean and variance those of the batch are taken, over images and cells, as in training: the variance is
    the biased one, the mean of the squared deviations. With both given it is they that count, as in inference. With
    `return_statistics` the result is `(y, mean, variance)`, from which running statistics can be kept. All arrays have one
    dtype; of the half precisions, which are computed in float32 and rounded once, those of channels may be float32 too, and
    statistics of the batch always are. y lies in memory as x does.

    **Error.** Statistics are merged in float64, and a large mean costs no digits. y errs by a few eps times the largest of
    its terms.

    **Equals** torch.nn.functional.batch_norm, ONNX BatchNormalization.
    """
    op = "batch_norm"
    one_of(op, "return_statistics", return_statistics, (False, True))
    arrays = named({"x": x, "scale": scale, "bias": bias}, mean=mean, variance=variance, add=add)
    if any_device_array(arrays.values()):
        from pullback.cuda.norm import arrays as on_gpu

        return on_gpu.batch_norm(arrays, eps, activation, layout, return_statistics)
    given, rules = _prepared(op, arrays, eps, activation, layout)
    if any_traced(given.values()):
        import autograd.numpy as anp

        recorded = formula(anp, given, rules)
        return recorded if return_statistics else recorded[0]
    dtype = given["x"].dtype
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ready, of_batch = _for_kernels(given, rules)
        y = _like(_normalized(ready, rules), rules, dtype) if given["x"].size else np.empty_like(given["x"])
    if not return_statistics:
        return y
    statistics = ready if of_batch else {name: given[name].copy() for name in ("mean", "variance")}
    return y, statistics["mean"], statistics["variance"]


@with_hints
def batch_norm_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    mean: npt.ArrayLike | None = None,
    variance: npt.ArrayLike | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    add: npt.ArrayLike | None = None,
    layout: str = DEFAULT_LAYOUT,
) -> tuple[Array, ...]:
    """Gradients of `batch_norm`: (dx, dscale, dbias), and dadd as a fourth where `add` is given.

    **Formula.** With g = dy where the activation passes it (above 0, and below 6 for "relu6"), else 0, and h = (x - mean) /
    sqrt(variance + eps): `dbias = sum of g`, `dscale = sum of g h`, over images and cells, `dadd = g`, and `dx = scale /
    sqrt(variance + eps) * (g - mean of g - h * mean of g h)`, or with given statistics, which are constants, `dx = scale /
    sqrt(variance + eps) * g`.

    **Shapes.** dy, dx, add and dadd as x; all others `(C,)`. The gradients have the dtypes of what they belong to.

    **Rules.** The arguments are those of the forward call; mean and variance are given here where they were given there, and
    not where it only returned them. What the activation passes is found again from x, as the forward call has found it.

    **Error.** Sums are merged in float64. dx errs by a few eps times the largest of its terms.
    """
    op = "batch_norm_grad"
    arrays = named({"dy": dy, "x": x, "scale": scale, "bias": bias}, mean=mean, variance=variance, add=add)
    if any_device_array(arrays.values()):
        from pullback.cuda.norm import arrays as on_gpu

        return on_gpu.batch_norm_grad(arrays, eps, activation, layout)
    given, rules = _prepared(op, arrays, eps, activation, layout)
    of = [name for name in ("x", "scale", "bias", "add") if name in given]
    if any_traced(given.values()):
        return _recorded_gradients(of, given, rules)
    if not given["x"].size:
        return tuple(np.zeros_like(given[name]) for name in of)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = _gradients(*_for_kernels(given, rules), rules)
        return tuple(
            gradient.astype(given[name].dtype, copy=False) if name in PER_CHANNEL else _like(gradient, rules, given[name].dtype)
            for name, gradient in zip(of, found, strict=True)
        )


def _gradients(ready: Mapping[str, Array], of_batch: bool, rules: Rules) -> tuple[Array, ...]:
    """(dx, dscale, dbias) or (dx, dscale, dbias, dadd)."""
    dy, x, scale, mean, inv_std = (ready[name] for name in ("dy", "x", "scale", "mean", "inv_std"))
    added, active = "add" in ready, rules.activation is not None
    y = _normalized(ready, rules) if active and added else None
    bias = ready["bias"] if active and not added else None  # with which the kernels make y again
    if of_batch:
        dx, dscale, dbias, *masked = kernels.batch_norm_grad(dy, x, scale, mean, inv_std, y, added, bias=bias, top=rules.top)
    else:
        line = {} if bias is None else {"scale": scale, "bias": bias}
        dbias, dscale, *masked = kernels.batch_norm_grad_sums(dy, x, mean, inv_std, y, True, top=rules.top, **line)
        nothing = np.zeros_like(mean)
        dx = kernels.normalize(masked[0], nothing, inv_std, scale, nothing)
    if not added:
        return dx, dscale, dbias
    return dx, dscale, dbias, masked[0] if active else masked[0].copy()  # which is the caller's dy


def _recorded_gradients(of: Sequence[str], given: Mapping[str, Any], rules: Rules) -> tuple[Any, ...]:
    """The gradients as autograd makes them, which it differentiates again."""
    import autograd.numpy as anp

    from pullback.autograd import pull_back

    def forward(*values: Any) -> Any:
        return formula(anp, {**given, **dict(zip(of, values, strict=True))}, rules)[0]

    back = pull_back(forward, [given[name] for name in of])[1]
    assert back is not None
    return tuple(back(given["dy"]))
