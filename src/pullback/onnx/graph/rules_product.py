"""Gradients of Gemm, MatMul and Einsum."""

from __future__ import annotations

from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.tensor_type import TensorType, broadcast
from pullback.onnx.graph.view import NodeView, reduced_to


def gemm_a(n: NodeView) -> Value:
    """Y = alpha A' B' + beta C, where A' and B' are A and B or their transposes."""
    da: Value
    if n.attr("transA", 0):
        da = n.op.Gemm(n.b, n.dy, **_options(n, transA=n.attr("transB", 0), transB=1))
    else:
        da = n.op.Gemm(n.dy, n.b, **_options(n, transB=1 - n.attr("transB", 0)))
    return da


def gemm_b(n: NodeView) -> Value:
    db: Value
    if n.attr("transB", 0):
        db = n.op.Gemm(n.dy, n.a, **_options(n, transA=1, transB=n.attr("transA", 0)))
    else:
        db = n.op.Gemm(n.a, n.dy, **_options(n, transA=1 - n.attr("transA", 0)))
    return db


def gemm_c(n: NodeView) -> Value:
    return reduced_to(n.g, n.dy * n.attr("beta", 1.0), n.input(2), n.y)


def _options(n: NodeView, **flags: int) -> dict[str, int | float]:
    alpha = n.attr("alpha", 1.0)
    return {name: value for name, value in {"alpha": alpha, **flags}.items() if value != (1.0 if name == "alpha" else 0)}


def matmul_a(n: NodeView) -> Value:
    """dA = dY B^T, summed over the batches that A was stretched to."""
    rank_a, rank_b = n.rank(n.a), n.rank(n.b)
    if rank_a == rank_b == 2:
        return n.op.Gemm(n.dy, n.b, transB=1)
    if rank_b == 1:  # y[...] = sum over k of a[..., k] b[k]
        dy = n.dy if rank_a == 1 else n.op.Unsqueeze(n.dy, n.g.constant([-1]))
        return n.g.typed(dy * n.b, n.a.type)
    row = rank_a == 1
    dy = n.op.Unsqueeze(n.dy, n.g.constant([-2])) if row else n.dy
    return _summed(n, n.op.MatMul(dy, transposed(n, n.b)), n.a, row=row)


def matmul_b(n: NodeView) -> Value:
    """dB = A^T dY, summed over the batches that B was stretched to; in one product where B has none."""
    rank_a, rank_b, g = n.rank(n.a), n.rank(n.b), n.g
    if rank_a == rank_b == 2:
        return n.op.Gemm(n.a, n.dy, transA=1)
    if rank_a == 1:  # y[..., j] = sum over k of a[k] b[..., k, j]
        dy = n.dy if rank_b == 1 else n.op.Unsqueeze(n.dy, g.constant([-2]))
        a = n.a if rank_b == 1 else n.op.Unsqueeze(n.a, g.constant([-1]))
        return g.typed(dy * a, n.b.type)
    columns = n.a.shape[-1] if n.a.shape else None
    if rank_b <= 2 and isinstance(columns, int):
        width = n.b.shape[-1] if rank_b == 2 and n.b.shape else 1
        if isinstance(width, int):
            flat_a, flat_dy = (n.op.Reshape(v, g.constant([-1, w])) for v, w in ((n.a, columns), (n.dy, width)))
            product = n.op.Gemm(flat_a, flat_dy, transA=1)
            return product if rank_b == 2 else g.reshape(product, n.b)
    dy = n.op.Unsqueeze(n.dy, g.constant([-1])) if rank_b == 1 else n.dy
    return _summed(n, n.op.MatMul(transposed(n, n.a), dy), n.b, row=False, column=rank_b == 1)


def transposed(n: NodeView, matrix: Value) -> Value:
    """With the last two axes exchanged."""
    rank = n.rank(matrix)
    return n.op.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


def _summed(n: NodeView, product: Value, target: Value, *, row: bool, column: bool = False) -> Value:
    """A product of batches summed to the shape of A or B."""
    ranks = n.rank(n.a), n.rank(n.b)
    if max(ranks) == n.rank(target) and _same_batch(n):
        return product
    if row or column:  # all batches are summed: a vector has none
        summed = n.g.sum_over(product, list(range(max(ranks) - 2)))
        return n.g.reshape(summed, target)
    batch = broadcast([(n.a.shape or ())[:-2], (n.b.shape or ())[:-2]]) or ()
    whole = n.g.typed(product, TensorType(target.dtype, (*batch, *(target.shape or ())[-2:])))
    return reduced_to(n.g, whole, target, whole)


def _same_batch(n: NodeView) -> bool:
    a, b = (n.a.shape or ())[:-2], (n.b.shape or ())[:-2]
    return a == b and None not in a


def einsum(n: NodeView) -> list[Value | None]:
    """The gradient of an operand: the same sum with the operand and the result in each other's place."""
    terms, result = _subscripts(n)
    grads: list[Value | None] = []
    for place, want in enumerate(n.wanted):
        if not want:
            grads.append(None)
            continue
        others = [i for i in range(len(terms)) if i != place]
        known = set(result).union(*(terms[i] for i in others))
        if not set(terms[place]) <= known or any(len(set(term)) < len(term) for term in (*terms, result)):
            raise n.refuse(
                f"equation {n.attr('equation')!r} sums an operand alone or takes a diagonal, which has no gradient here"
            )
        equation = ",".join([result, *(terms[i] for i in others)]) + "->" + terms[place]
        grads.append(n.op.Einsum(n.dy, *(n.input(i) for i in others), equation=equation))
    return grads


def _subscripts(n: NodeView) -> tuple[list[str], str]:
    """One letter an axis, with an ellipsis written out and the result named."""
    left, _, result = n.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not result and "->" not in n.attr("equation"):
        letters = left.replace(",", "").replace("...", "")
        result = ("..." if "..." in left else "") + "".join(sorted(each for each in set(letters) if letters.count(each) == 1))
    if "..." not in left:
        return terms, result
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in left]
    counts = [n.rank(n.input(i)) - len(term.replace("...", "")) for i, term in enumerate(terms)]
    batches = [(n.input(i).shape or ())[:count] for i, count in enumerate(counts) if "..." in terms[i]]
    if any(batch != batches[0] or None in batch for batch in batches):
        raise n.refuse(f"equation {n.attr('equation')!r} stretches an operand along its ellipsis, which has no gradient here")
    batch = "".join(free[: len(batches[0])])
    return [term.replace("...", batch) for term in terms], result.replace("...", batch)
