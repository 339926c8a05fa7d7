"""What runs kernels: machine, compiler and cache, plans and their records, memory, threads, warm-up."""
