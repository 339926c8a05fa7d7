"""One recorded call of a model: CUDA graphs of its forward and its backward pass, and the autograd node that replays them.

Nothing runs while it is recorded, so no statistics, weights or gradients change. What the graphs read and write stays where it is:
inputs are copied in, results and gradients are copied out, so that nobody holds memory that the next replay writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from pullback.torch.graphs.kinds import Given, NoGraphError, Parts
from pullback.torch.pending import Pending
from pullback.torch.replayed import to_be_replayed

TWICE = (
    "accelerate(model, graphs=True) keeps what a backward pass needs until that pass: call the model again, or leave graphs out "
    "where one call has several backward passes"
)
SECOND = "derivatives of derivatives are not recorded: leave out graphs=True, accelerate(model) alone has them"


class Token:
    """Kept by the autograd node of a replayed call, for as long as its backward pass may come."""

    done = False


@contextmanager
def _stand_ins(parts: Parts) -> Iterator[dict[int, nn.Parameter]]:
    """The model with other parameters over the same memory: its own may have hooks, and autograd nodes on other streams."""
    found = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in parts.parameters.values()}
    tables = [module._parameters for module in parts.modules]
    before = [dict(table) for table in tables]
    try:
        for table in tables:
            for name, parameter in table.items():
                if parameter is not None:
                    table[name] = found[id(parameter)]
        yield found
    finally:
        for table, held in zip(tables, before, strict=True):
            table.update(held)


def _leaves_of(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that results depend on."""
    ahead, seen, found = [y.grad_fn for y in outputs if y.grad_fn is not None], set(), []
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        ahead += [following for following, _ in node.next_functions if following is not None]
    return found


def _buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the recording's own for an input; one that is met in several places becomes dense."""
    return torch.empty_like(tensor.detach(), memory_format=torch.preserve_format)


class Recording:
    def __init__(self, model: nn.Module, forward: Callable[..., Any], call: Given, parts: Parts, pool: Any) -> None:
        self.inputs = [_buffer_like(leaf).copy_(leaf.detach()) for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        needs = [leaf.requires_grad for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        self.places = [place for place, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor)]
        self.backward_graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()
        torch.clear_autocast_cache()
        with torch.cuda.stream(self.stream), to_be_replayed(), _stand_ins(parts) as stand_ins:
            inner = [buffer.detach().requires_grad_(need) for buffer, need in zip(self.inputs, needs, strict=True)]
            leaves = list(call.leaves)
            for place, tensor in zip(self.places, inner, strict=True):
                leaves[place] = tensor
            args, kwargs = tree_unflatten(leaves, call.spec)
            self.forward_graph = torch.cuda.CUDAGraph()
            with self._recorded(self.forward_graph, pool):
                made = forward(model, *args, **kwargs)
                results, self.spec = tree_flatten(made)
                results = [part.plain() if type(part) is Pending else part for part in results]
            torch.clear_autocast_cache()  # the weights in it are the graph's
            del made
            outputs = [part for part in results if isinstance(part, torch.Tensor)]
            if any(type(part) not in (torch.Tensor, nn.Parameter) or not part.is_cuda for part in outputs):
                raise NoGraphError("a result is not a plain tensor on the GPU")
            self.results = [part if not isinstance(part, torch.Tensor) else None for part in results]
            self.is_tensor = [isinstance(part, torch.Tensor) for part in results]
            self.outputs = [part.detach() for part in outputs]
            self.differentiable = [part.requires_grad for part in outputs]
            # Of inputs and parameters: which have a gradient, as places among the inputs and as identities.
            self.input_places = [number for number, need in enumerate(needs) if need]
            self.parameters = [p for p in parts.parameters.values() if p.requires_grad]
            if any(self.differentiable):
                wanted = [inner[number] for number in self.input_places] + [stand_ins[id(p)] for p in self.parameters]
                self._record_backward([part for part in outputs if part.requires_grad], wanted, pool)

    @contextmanager
    def _recorded(self, graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
        with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
            yield

    def _record_backward(self, outputs: list[torch.Tensor], wanted: list[torch.Tensor], pool: Any) -> None:
        known = {id(tensor) for tensor in wanted}
        if any(id(leaf) not in known for leaf in _leaves_of(outputs)):
            raise NoGraphError("it trains a tensor that is no parameter of one of its modules")
        self.output_gradients = [torch.zeros_like(part) for part in outputs]
        self.backward_graph = torch.cuda.CUDAGraph()
        with self._recorded(self.backward_graph, pool):
            found = torch.autograd.grad(outputs, wanted, self.output_gradients, allow_unused=True)
        self.gradients = [None if part is None else part.detach() for part in found]

    def replay(self, call: Given, token: Token) -> Any:
        """The results of a call like the recorded one."""
        tensors = [call.leaves[place] for place in self.places]
        for buffer, tensor in zip(self.inputs, tensors, strict=True):
            buffer.copy_(tensor.detach())
        if self.backward_graph is None:
            self.forward_graph.replay()
            token.done = True
            found = [part.clone() for part in self.outputs]
        else:
            trained = [tensors[number] for number in self.input_places]
            found = list(_Replay.apply(self, token, len(trained), *trained, *self.parameters))
        rest = iter(found)
        results = [next(rest) if is_tensor else part for is_tensor, part in zip(self.is_tensor, self.results, strict=True)]
        return tree_unflatten(results, self.spec)

    def copies_of_gradients(self) -> list[torch.Tensor | None]:
        held = [part for part in self.gradients if part is not None]
        fresh = [torch.empty_like(part) for part in held]
        if held:
            torch._foreach_copy_(fresh, held)
        made = iter(fresh)
        return [None if part is None else next(made) for part in self.gradients]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, token: Token, inputs: int, *trained: torch.Tensor) -> tuple[torch.Tensor, ...]:
        recording.forward_graph.replay()
        ctx.recording, ctx.token = recording, token
        ctx.save_for_backward(
            *trained[inputs:]
        )  # so that weights which change before the backward pass are PyTorch's usual error
        made = [part.clone() for part in recording.outputs]
        ctx.mark_non_differentiable(*[y for y, needs in zip(made, recording.differentiable, strict=True) if not needs])
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        recording, token = ctx.recording, ctx.token
        if torch.is_grad_enabled():
            raise RuntimeError(SECOND)
        if token.done:
            raise RuntimeError(TWICE)
        _ = ctx.saved_tensors
        token.done = True
        given = [g for g, needs in zip(gradients, recording.differentiable, strict=True) if needs]
        for buffer, gradient in zip(recording.output_gradients, given, strict=True):
            if gradient is None:
                buffer.zero_()
            else:
                buffer.copy_(gradient)
        recording.backward_graph.replay()
        return None, None, None, *recording.copies_of_gradients()
