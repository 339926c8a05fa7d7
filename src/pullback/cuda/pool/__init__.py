"""Pooling on a GPU: every cell of a result is written once, by one program, and nothing is added atomically."""
