"""Pooling and its gradients: plans, and kernels beside them."""
