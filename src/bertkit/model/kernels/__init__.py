"""Our own kernels in Triton, which comes only with CUDA; each is behind one function with a plain torch version beside it.

The compiler sees them as operators of which it knows only the output shapes: tracing their launches would take seconds at
the start of a run and gain nothing. Launches ask for fused multiply-add explicitly, which Triton will not assume forever.
"""

from collections.abc import Callable
from typing import Any

import torch


def operator(name: str) -> Callable[[Callable], Any]:
    """Returns a decorator that registers a function as an operator of this name. torch's custom_op would import the compiler
    at the first call, which takes seconds."""

    def make(function: Callable) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(f"bertkit::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(f"bertkit::{name}", "CompositeExplicitAutograd", function)
        return getattr(torch.ops.bertkit, name).default

    return make
