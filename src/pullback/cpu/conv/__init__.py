"""Dense convolution and its gradients: plans, and kernels beside them."""
