"""Normalization kernels of the cuda backend against PyTorch's own formulas in float64: every kernel, both layouts, all types."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"  # conftest.py sets it
SHAPES = ((3, 5, 4, 3), (2, 24, 3, 2), (5, 7), (2, 3, 17), (2, 2, 2, 3, 4), (1, 140, 2, 2))
CASES = [
    ("", 0.0, False),
    ("", 0.0, True),
    ("relu", 0.0, False),
    ("relu", 0.0, True),
    ("relu", 0.5, True),
    ("silu", 0.0, False),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def channels_of(x: Any, **more: Any) -> Any:
    from pullback.cuda.norm.plan import Channels

    last = x.stride(1) == 1
    inner = 1 if last else x[0, 0].numel()
    return Channels(
        x.numel() // x.shape[1] // inner, x.shape[1], inner, x.dtype, last, torch.promote_types(x.dtype, torch.float32), **more
    )


def lying(x: Any, last: bool) -> Any:
    if not last or x.dim() < 3:
        return x.contiguous()
    order = (0, *range(2, x.dim()), 1)
    return x.permute(order).contiguous().permute(0, x.dim() - 1, *range(1, x.dim() - 1))


def activated(y: Any, kind: str, top: float) -> Any:
    if kind == "relu":
        return y.clamp(0, top) if top else y.relu()
    return torch.nn.functional.silu(y) if kind == "silu" else y


def drawn(shape: tuple[int, ...], dtype: Any, last: bool, offset: float = 3.0) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x, dy, add = (lying(torch.randn(shape).to(dtype), last).to(DEVICE) for _ in range(3))
    x = lying((x + offset).to(dtype), last)
    scale, shift = (torch.randn(shape[1], dtype=torch.float64).to(DEVICE) for _ in range(2))
    wide = dtype if dtype is torch.float64 else torch.float32
    return x, dy, add, scale.to(wide), shift.to(wide)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("kind", "top", "adds"), CASES)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_batch_norm(shape: tuple[int, ...], kind: str, top: float, adds: bool, last: bool, dtype: Any) -> None:
    from pullback.cuda.norm import batch
    from pullback.cuda.norm.plan import Activation

    x, dy, add, scale, shift = drawn(shape, dtype, last)
    what = channels_of(x, activation=Activation(kind, top), adds=adds, eps=1e-3)
    found = batch.batch_statistics(what, x, shift)
    y = batch.normalize(what, x, found, scale, add if adds else None)
    inputs = [tensor.double().requires_grad_() for tensor in (x, scale, shift, add)]
    plain = torch.nn.functional.batch_norm(inputs[0], None, None, *inputs[1:3], True, 0.1, 1e-3)
    before = plain + inputs[3] if adds else plain
    wanted = activated(before, kind, top)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(y.double(), wanted, **close)
    assert y.stride() == x.stride()
    if kind == "relu":  # rounding decides what is passed near its corners
        dy = torch.where((before.abs() < 0.05) | ((before - top).abs() < 0.05), 0.0, dy).to(dtype)
    dx, sums, masked = batch.gradients(what, dy, x, y if adds and kind else None, found, scale)
    dxs = torch.autograd.grad(wanted, inputs if adds else inputs[:3], dy.double())
    size = dy.numel() / dy.shape[1]
    torch.testing.assert_close(dx.double(), dxs[0], **close)
    torch.testing.assert_close(sums.double() / size, torch.stack((dxs[2], dxs[1])) / size, **close)
    if adds:
        torch.testing.assert_close(masked.double(), dxs[3], **close)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks(shape: tuple[int, ...], last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs, each with several tiles, the last ones not whole."""
    from pullback.cuda.norm import batch, plan

    monkeypatch.setattr(plan, "CELLS", 16)
    monkeypatch.setattr(plan, "STEPS", 2)
    plan.tiles_of.cache_clear()
    x, dy, _, scale, shift = drawn(shape, torch.float32, last, 100.0)
    what = channels_of(x, eps=1e-5)
    tiles = plan.tiles_of(*what[:5], True)
    assert tiles.chunks * tiles.programs_beside > 1
    found = batch.batch_statistics(what, x, shift)
    plan.tiles_of.cache_clear()
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x.double(), axes, correction=0)
    wanted = torch.stack((mean, variance, (variance + 1e-5).rsqrt(), shift.double())).float()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(plan, "CELLS", 16)
    y = batch.normalize(what, x, found, scale, None)
    dx, sums, _ = batch.gradients(what, dy, x, None, found, scale)
    plan.tiles_of.cache_clear()
    inputs = [tensor.double().requires_grad_() for tensor in (x, scale, shift)]
    wanted = torch.nn.functional.batch_norm(inputs[0], None, None, *inputs[1:], True, 0.1, 1e-5)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-3, atol=1e-3)
    dxs = torch.autograd.grad(wanted, inputs, dy.double())
    torch.testing.assert_close(dx.double(), dxs[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sums.double(), torch.stack((dxs[2], dxs[1])), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics(momentum: float | None) -> None:
    from pullback.cuda.norm import batch

    theirs = torch.nn.BatchNorm2d(5, momentum=momentum).double().to(DEVICE)
    mean, variance, batches = (tensor.clone() for tensor in theirs.buffers())
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 5, 3, 2, dtype=torch.float64).to(DEVICE)
        theirs(x)
        if momentum is None:
            batches += 1
        what = channels_of(
            x, shift=False, eps=1e-5, momentum=-1.0 if momentum is None else momentum, running=True, counts=momentum is not None
        )
        batch.batch_statistics(what, x, None, (mean, variance), batches)
    for ours, wanted in zip((mean, variance, batches), theirs.buffers(), strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("kind", ["", "relu", "silu"])
def test_given_statistics(kind: str, last: bool) -> None:
    """They are constants, also for the gradient."""
    from pullback.cuda.norm import batch
    from pullback.cuda.norm.plan import Activation

    x, dy, _, scale, shift = drawn((2, 6, 3, 4), torch.float64, last)
    mean, variance = torch.randn_like(scale), torch.rand_like(scale) + 0.5
    what = channels_of(x, activation=Activation(kind), batch=False, eps=1e-5)
    found = batch.given_statistics(what, x, shift, mean, variance)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, scale, shift)]
    wanted = activated(torch.nn.functional.batch_norm(inputs[0], mean, variance, *inputs[1:], False, 0.1, 1e-5), kind, 0.0)
    torch.testing.assert_close(batch.normalize(what, x, found, scale, None), wanted.detach())
    dx, sums, _ = batch.gradients(what, dy, x, None, found, scale)
    dxs = torch.autograd.grad(wanted, inputs, dy)
    torch.testing.assert_close(dx, dxs[0])
    torch.testing.assert_close(sums, torch.stack((dxs[2], dxs[1])))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("out", [None, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (3, 96), (40, 24), (1, 1)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(rows: int, columns: int, affine: bool, out: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.cuda.norm import plan
    from pullback.cuda.norm import rows as layer
    from pullback.cuda.norm.plan import Rows

    monkeypatch.setattr(plan, "ROW_CELLS", 64)
    monkeypatch.setattr(plan, "ROW_CHUNKS", 4)
    x, dy, _, scale, shift = drawn((rows, columns), dtype, False)
    given = (scale, shift) if affine else (None, None)
    what = Rows(rows, columns, dtype, out or dtype, scale.dtype, 1e-3, affine, affine, affine)
    y, kept = layer.normalize(what, x, *given)
    inputs = [tensor.double().requires_grad_() for tensor in ((x, scale, shift) if affine else (x,))]
    wanted = torch.nn.functional.layer_norm(inputs[0], (columns,), *inputs[1:], eps=1e-3)
    tolerance = max(TOLERANCE[dtype], TOLERANCE[out or dtype])
    close = {"rtol": tolerance, "atol": tolerance}
    assert y.dtype is (out or dtype)
    torch.testing.assert_close(y.double(), wanted, **close)
    dy = dy.to(y.dtype)
    dx, sums = layer.gradients(what, dy, x, kept, given[0])
    dxs = torch.autograd.grad(wanted, inputs, dy.double())
    torch.testing.assert_close(dx.double(), dxs[0], **close)
    if affine:
        torch.testing.assert_close(sums.double() / rows, torch.stack((dxs[2], dxs[1])) / rows, **close)
    else:
        assert sums is None


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("activation", "adds"), [(None, True), ("relu", False), ("relu6", True)])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_public_ops(
    layout: str, activation: str | None, adds: bool, fixed: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pb.batch_norm and its gradient of arrays of a GPU, against the same call of NumPy arrays."""
    import numpy as np

    import pullback as pb
    from pullback.cuda.norm import arrays as on_gpu

    rng = np.random.default_rng(0)
    shape = (3, 4, 5, 6) if layout == "channels_last" else (3, 6, 4, 5)
    x, dy, add = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    names = ("scale", "bias", "mean", "variance") if fixed else ("scale", "bias")
    given = {"x": x, **{name: rng.uniform(0.5, 2, 6).astype(np.float32) for name in names}}
    if adds:
        given["add"] = add
    more: dict[str, Any] = {"activation": activation, "layout": layout}
    wanted = pb.batch_norm(**given, **more, return_statistics=True)
    gradients = pb.batch_norm_grad(dy, **given, **more)
    ours = {name: torch.from_numpy(array).to(DEVICE) for name, array in {"dy": dy, **given}.items()}
    if DEVICE == "cpu":  # these tensors are no arrays of a GPU
        monkeypatch.setattr(on_gpu, "tensors_of", lambda op, values, axes: dict(values))
        monkeypatch.setattr("pullback.ops.batch_norm.any_device_array", lambda values: any(map(torch.is_tensor, values)))
    dys = ours.pop("dy")
    found = pb.batch_norm(**ours, **more, return_statistics=True)
    close = {"rtol": TOLERANCE[getattr(torch, dtype)], "atol": TOLERANCE[getattr(torch, dtype)]}
    for one, other in zip((*found, *pb.batch_norm_grad(dys, **ours, **more)), (*wanted, *gradients), strict=True):
        assert one.shape == other.shape
        assert str(one.dtype) == f"torch.{other.dtype}"
        size = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one.cpu().numpy() / size, other / size, **close)
