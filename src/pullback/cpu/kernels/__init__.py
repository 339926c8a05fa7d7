"""Kernel sources: Python that Numba compiles. Every module here imports Numba, so only the compiler imports them."""
