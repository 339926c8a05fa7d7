"""Attention (opset 23) as encoders and vision models have it: without the caches of text generation."""

from __future__ import annotations

import math

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import refused
from pullback.rules import Array

KNOWN = frozenset(
    ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision")
)


def _heads(x: Array, count: int) -> Array:
    """(batch, length, heads x size) as (batch, heads, length, size)."""
    batch, length, _ = x.shape
    return x.reshape(batch, length, count, -1).transpose(0, 2, 1, 3)


def _masked(scores: Array, mask: Array | None, causal: bool) -> Array:
    """Scores plus the mask; -infinity where it is False, behind its end, or a later key is looked at."""
    keys = scores.shape[-1]
    if mask is not None:
        seen = mask.shape[-1]
        if mask.dtype == np.bool_:
            scores[..., :seen] = np.where(mask, scores[..., :seen], -np.inf)
        else:
            scores[..., :seen] += mask
        scores[..., seen:] = -np.inf
    if causal:
        scores[..., np.arange(keys) > np.arange(scores.shape[-2])[:, None]] = -np.inf
    return scores


@op("Attention")
def attention(node: Node, q: Array, k: Array, v: Array, mask: Array | None = None, *caches: Array | None) -> Array:
    """softmax(Q K^T scale + mask) V for each head; a query that no key may answer gives 0."""
    if any(cache is not None for cache in caches) or any(node.wants(place) for place in (1, 2, 3)):
        raise refused(node, "caches and scores as inputs or outputs", "export the model without them")
    unknown = node.attrs.keys() - KNOWN
    if unknown:
        raise refused(node, f"the attribute {min(unknown)}", "export the model with opset 23")
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, node.attr(name)) for x, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    if q.shape[1] != k.shape[1]:  # several heads of queries share one of keys and values
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    root = q.dtype.type(math.sqrt(node.attr("scale") or 1 / math.sqrt(q.shape[-1])))
    scores: Array = np.matmul(q * root, np.swapaxes(k * root, -1, -2))
    cap = scores.dtype.type(node.attr("softcap", 0.0))
    if cap:
        scores /= cap
        np.tanh(scores, out=scores)
        scores *= cap
    scores = _masked(scores, mask, bool(node.attr("is_causal", 0)))
    most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    scores -= np.where(np.isfinite(most), most, 0)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= np.where(total == 0, 1, total)
    y: Array = np.matmul(scores, v)
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1) if flat else y
