"""Native passes over flat memory for training steps: ReLU, sums and their gradients, optimizer steps, sums of squares."""

from pullback.cpu.elementwise.maps import add, add_relu, clip, clip_grad, relu, relu_grad, relu_grad_of_sum
from pullback.cpu.elementwise.optimizers import adam_step, sgd_step
from pullback.cpu.elementwise.sums import sum_of_squares

__all__ = [
    "adam_step",
    "add",
    "add_relu",
    "clip",
    "clip_grad",
    "relu",
    "relu_grad",
    "relu_grad_of_sum",
    "sgd_step",
    "sum_of_squares",
]
