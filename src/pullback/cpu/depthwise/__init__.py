"""Convolutions of many groups with few channels each: plans, and kernels beside them."""
