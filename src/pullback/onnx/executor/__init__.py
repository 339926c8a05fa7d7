"""Running ONNX graphs, forward or training, on pullback's kernels and NumPy: planned once for each set of shapes."""
