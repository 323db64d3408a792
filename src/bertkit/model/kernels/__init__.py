"""Kernels of our own in Triton, which comes with CUDA alone; each stands behind one function with plain torch beside it.

To the compiler they are operators of which it knows no more than their results' shapes: to follow their launches would take
it seconds at the start of a run, and gain nothing. Launches say that a product and a sum are one instruction, which
Triton will not assume for ever.
"""
