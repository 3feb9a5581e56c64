"""CUDA backend of `ops`: Triton kernels, one operator per file, and cuBLAS for matrix products."""
