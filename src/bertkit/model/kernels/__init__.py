"""Kernels of our own in Triton, which comes with CUDA alone; each stands behind one function with plain torch beside it."""
