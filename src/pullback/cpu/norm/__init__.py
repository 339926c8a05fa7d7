"""Native batch normalization, forward and backward, in any memory order; each in two halves, between which ranks may reduce."""

from pullback.cpu.norm.gradient import batch_norm_grad, batch_norm_grad_apply, batch_norm_grad_sums
from pullback.cpu.norm.normalize import batch_norm_train, normalize
from pullback.cpu.norm.statistics import batch_statistics, training_statistics

__all__ = [
    "batch_norm_grad",
    "batch_norm_grad_apply",
    "batch_norm_grad_sums",
    "batch_norm_train",
    "batch_statistics",
    "normalize",
    "training_statistics",
]
