"""What each node of a graph computes on NumPy arrays: one function an op, entered into the executor's registry by `@op`."""
