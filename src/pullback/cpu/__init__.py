"""The cpu backend: kernels in Python compiled to vector instructions, run on a thread pool of our own.

kernel_list (which kernels there are, in the order they are tried) · engine (what runs them) · simd (what they are written in) ·
pool, conv, depthwise, winograd (the families: in each, x.py is the plan of x_kernel.py). docs/architecture.md walks through a call.
"""
