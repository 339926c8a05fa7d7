"""Convolution by Winograd's transforms: plans, and kernels beside them."""
