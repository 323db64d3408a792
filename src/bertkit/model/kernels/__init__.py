"""Kernels of our own in Triton, which comes with CUDA alone; each stands behind one function with plain torch beside it.

To the compiler they are operators of which it knows no more than their results' shapes: to follow their launches would take
it seconds at the start of a run, and gain nothing. Launches say that a product and a sum are one instruction, which
Triton will not assume for ever.
"""

from collections.abc import Callable
from typing import Any

import torch


def operator(name: str) -> Callable[[Callable], Any]:
    """Makes a function an operator under this name. torch's own way, custom_op, imports the compiler with the first call,
    which takes seconds."""

    def make(function: Callable) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(f"bertkit::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(f"bertkit::{name}", "CompositeExplicitAutograd", function)
        return getattr(torch.ops.bertkit, name).default

    return make
