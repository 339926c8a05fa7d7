"""The language that kernels are written in: vectors, masked memory, register tiles, transpose, interleave, prefetch."""
