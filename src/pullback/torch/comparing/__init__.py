"""compare(model, ...): a model's own training step on PyTorch's kernels and on ours; `turns` takes the steps, the rest serves."""

from pullback.torch.comparing.comparison import Comparison
from pullback.torch.comparing.turns import compare

__all__ = ["Comparison", "compare"]
