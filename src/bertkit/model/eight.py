"""A block's linear layers in fp8, where matrix multiplications take half the time of bf16 on GPUs that support it.

In the forward pass, values and weights are e4m3. An input's gradient is computed from e5m2 and e4m3, a weight's in bf16: its
sums are long, and fp8 would need both factors transposed. Scales are fixed powers of two, so no maxima are needed: fp8
numbers have exponents, norms, softmax and GELU keep values in range, and the few beyond are clamped. Casts are outside the
operators, so that the compiler can fuse them with what comes before.

T tokens, D width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.attention import Attention
from bertkit.model.feedforward import FeedForward
from bertkit.model.kernels.gelu import gelu8, gelu8_gradient
from bertkit.model.linear import Linear
from bertkit.model.norm import narrow

VALUE, WEIGHT, GRADIENT = 4.0, 64.0, 2.0**20  # the scale of each


def eight(x: Tensor, factor: float, kind: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Returns x times factor in fp8."""
    most = torch.finfo(kind).max
    return (x.detach().float() * factor).clamp(-most, most).to(kind)


@torch.library.custom_op("bertkit::product8", mutates_args=())
def product(x: Tensor, weight: Tensor, factor: float, bias: Tensor | None = None) -> Tensor:
    """Returns x wᵀ + b in bf16 [M, N], of x [M, K] and w [N, K] in fp8, whose scales multiply to `factor`."""
    scales = _scale(1 / factor, x.device), _scale(1.0, x.device)
    return torch._scaled_mm(x, weight.T, *scales, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True)


@cache
def _scale(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, device=device)


def _backwards(upper: Tensor, weight: Tensor) -> Tensor:
    """Returns the gradient of what was multiplied by the weight, from that of the product in fp8."""
    return product(upper, eight(weight, WEIGHT).T.contiguous(), GRADIENT * WEIGHT)


@torch.library.custom_op("bertkit::linear8", mutates_args=())
def _linear(x: Tensor, x8: Tensor, weight: Tensor, weight8: Tensor, bias: Tensor | None) -> Tensor:
    return product(x8, weight8, VALUE * WEIGHT, bias)


def _keep_linear(ctx: Any, inputs: Sequence[Tensor], output: Tensor) -> None:
    x, _, weight, _, bias = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight)


def _linear_gradient(ctx: Any, upper: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx = _backwards(eight(upper, GRADIENT, torch.float8_e5m2), weight)
    return dx, None, (upper.T @ x).to(weight.dtype), None, upper.sum(0) if ctx.biased else None


@torch.library.custom_op("bertkit::feedforward8", mutates_args=())
def _feed(
    x: Tensor, x8: Tensor, first: Tensor, first8: Tensor, bias: Tensor, second: Tensor, second8: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    h = product(x8, first8, VALUE * WEIGHT)  # [T, F]
    return product(gelu8(h, bias, VALUE), second8, VALUE * WEIGHT, last), h


def _keep_feed(ctx: Any, inputs: Sequence[Tensor], output: Sequence[Tensor]) -> None:
    x, _, first, _, bias, second, _, _ = inputs
    ctx.save_for_backward(x, first, bias, second, output[1])


def _feed_gradient(ctx: Any, upper: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, first, bias, second, h = ctx.saved_tensors
    da = _backwards(eight(upper, GRADIENT, torch.float8_e5m2), second)
    dh, dh8, a, db = gelu8_gradient(h, bias, da, GRADIENT)
    dw = (dh.T @ x).to(first.dtype), (upper.T @ a).to(second.dtype)
    return _backwards(dh8, first), None, dw[0], None, db, dw[1], None, upper.sum(0)


product.register_fake(lambda x, weight, *_: x.new_empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16))
_linear.register_fake(lambda x, x8, weight, *_: x.new_empty(x.shape[0], weight.shape[0]))
_feed.register_fake(lambda x, x8, first, *_: (torch.empty_like(x), x.new_empty(x.shape[0], first.shape[0])))
_linear.register_autograd(_linear_gradient, setup_context=_keep_linear)
_feed.register_autograd(_feed_gradient, setup_context=_keep_feed)


class Linear8(Linear):
    """W x + b."""

    def forward(self, x: Tensor) -> Tensor:
        x, bias = narrow(x), None if self.bias is None else narrow(self.bias)
        return _linear(x, eight(x, VALUE), self.weight, eight(self.weight, WEIGHT), bias)


class FeedForward8(FeedForward):
    """D → F → D; GELU in between reads bf16 and writes fp8."""

    def forward(self, x: Tensor) -> Tensor:
        first, second, x = self.input.weight, self.output.weight, narrow(x)
        weights = first, eight(first, WEIGHT), self.input.bias, second, eight(second, WEIGHT), narrow(self.output.bias)
        return _feed(x, eight(x, VALUE), *weights)[0]  # [T, D]


def in_eight_bits(network: nn.Module) -> None:
    """Switches the linear layers of the network's blocks to fp8, where sizes are multiples of 16; weights and names stay."""
    for module in network.modules():
        maps = [module.qkv, module.output] if isinstance(module, Attention) else []
        maps += [module.input, module.output] if isinstance(module, FeedForward) else []
        if any(size % 16 for one in maps for size in one.weight.shape):
            continue
        if type(module) is FeedForward and module.activation is F.gelu and module.input.bias is not None:
            module.__class__ = FeedForward8
        else:
            for one in maps:
                one.__class__ = Linear8
