"""The same bits every time, whatever memory held before, and on any stream: on a GPU, since the interpreter has one order only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here: nothing runs at once"),
]
POOL = {"stride": 2, "padding": 1}


def drawn(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(shape, device="cuda", dtype=dtype or torch.float32)


def calls(layout: str, dtype: Any) -> dict[str, Callable[[], Any]]:
    """A call of every kernel, with sums of many programs."""

    def lying(array: Any) -> Any:
        return array if layout == "channels_last" else array.movedim(-1, 1).contiguous()

    torch.manual_seed(0)
    x, dy = lying(drawn(8, 57, 55, 48, dtype=dtype)), lying(drawn(8, 29, 28, 48, dtype=dtype))
    image, wide = lying(drawn(8, 57, 55, 3, dtype=dtype)), lying(drawn(8, 57, 55, 32, dtype=dtype))
    scale, bias = drawn(48, dtype=dtype), drawn(48, dtype=dtype)
    more: dict[str, Any] = {"layout": layout}
    _, winners = pb.max_pool(x, 3, return_winners=True, **POOL, **more)
    found: dict[str, Callable[[], Any]] = {
        "max_pool": lambda: pb.max_pool(x, 3, return_winners=True, **POOL, **more),
        "max_pool_grad": lambda: pb.max_pool_grad(dy, x, 3, **POOL, **more),
        "max_pool_grad_from_winners": lambda: pb.max_pool_grad_from_winners(dy, winners, x.shape, 3, **POOL, **more),
        "avg_pool": lambda: pb.avg_pool(x, 3, **POOL, **more),
        "avg_pool_grad": lambda: pb.avg_pool_grad(dy, x.shape, 3, **POOL, **more),
        "batch_norm": lambda: pb.batch_norm(x, scale, bias, **more),
        "batch_norm_grad": lambda: pb.batch_norm_grad(x, x, scale, bias, activation="relu", **more),
    }
    for name, given, groups, out in (("depthwise", x, 48, 48), ("grouped", x, 12, 48), ("few_channels", image, 1, 32)):
        last = (3, 3, given.shape[-1 if layout == "channels_last" else 1] // groups, out)
        f = drawn(*last, dtype=dtype) if layout == "channels_last" else drawn(out, last[2], 3, 3, dtype=dtype)
        g = wide if out == 32 else x
        keywords = {"padding": 1, "groups": groups, **more}
        found |= {
            f"{name} gradient": by_name(name, lambda g=g, f=f, s=given.shape, k=keywords: pb.conv_grad_input(g, f, s, **k)),
            f"{name} filter gradient": by_name(
                name, lambda g=g, f=f, given=given, k=keywords: pb.conv_grad_filter(g, given, f.shape, **k)
            ),
        }
        if groups > 1:
            found[name] = by_name(name, lambda f=f, given=given, k=keywords: pb.conv(given, f, **k))
    return found


def by_name(name: str, run: Callable[..., Any]) -> Callable[[], Any]:
    def named() -> Any:
        with pb.kernel(name):
            return run()

    return named


def tensors(found: Any) -> list[Any]:
    return [
        torch.as_tensor(part).clone(memory_format=torch.contiguous_format)
        for part in (found if isinstance(found, tuple) else (found,))
    ]


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits(layout: str, dtype: Any) -> None:
    for name, call in calls(layout, dtype).items():
        first = tensors(call())
        for poison in (float("nan"), 1e30):
            rubbish = [torch.full((size,), poison, device="cuda") for size in (1 << 12, 1 << 18, 1 << 21, 1 << 23)]
            del rubbish  # its memory is what the next call gets
            for one, other in zip(first, tensors(call()), strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_streams(layout: str) -> None:
    """A call waits for what its own stream has been given before, and for nothing of another."""
    for name, call in calls(layout, torch.float32).items():
        wanted = tensors(call())
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(3)]
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                found.append(tensors(call()))
        torch.cuda.synchronize()
        for results in found:
            for one, other in zip(wanted, results, strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name
