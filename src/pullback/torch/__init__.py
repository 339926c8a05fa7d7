"""pullback for PyTorch: `functional` (as torch.nn.functional), and `accelerate(model)`, which swaps the layers of a model in place.

Inside this package `import torch` is PyTorch.
"""

from pullback.extras import missing as _missing

try:
    import torch as _torch
except ImportError as error:
    raise _missing(error, "torch", "pullback.torch needs PyTorch") from None

from pullback.torch import functional, modules
from pullback.torch.comparing import Comparison, compare
from pullback.torch.report import Layer, Report, explain
from pullback.torch.swap import accelerate, accelerated, restore
from pullback.torch.threads import share_threads

__all__ = [
    "Comparison",
    "Layer",
    "Report",
    "accelerate",
    "accelerated",
    "compare",
    "explain",
    "functional",
    "modules",
    "restore",
    "share_threads",
]

share_threads()
del _torch
