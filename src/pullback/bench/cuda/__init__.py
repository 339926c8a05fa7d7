"""The benchmark of the cuda backend: our kernels against PyTorch's in the same layout, in bytes a second beside a copy's."""
