"""pullback for PyTorch: `functional` (as torch.nn.functional), and `accelerate(model)`, which swaps the layers of a model in place.

Inside this package `import torch` is PyTorch.
"""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("pullback.torch needs PyTorch: pip install 'pullback[torch]'") from error

from pullback.torch import functional

__all__ = ["functional"]

del _torch
