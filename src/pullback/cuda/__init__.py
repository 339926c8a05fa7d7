"""The cuda backend: kernels in Triton for arrays in the memory of an NVIDIA GPU, behind the same ops, problems and registry.

kernel_list (every kernel, by op) · call (runs an op on arrays of a GPU) · arrays (what those are) · axes (geometry as kernels
take it) · launch (tiles, streams, launches) · pool/, depthwise/, conv/ (the families: x.py launches what x_kernel.py says).

Only arrays of a GPU come here, so neither PyTorch nor Triton is imported before there is one.
"""
