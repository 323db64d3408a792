"""Dropout: each value is dropped with the given rate, and the rest scaled up.

Compiled, the decision is a hash of the value's place and one random number, a handful of integer instructions that the
compiler fuses into whatever stands beside it, and computes again for the gradient instead of keeping a mask.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Active in training alone."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if not x.is_cuda:
            return drawn_dropout(x, self.rate)
        return hashed_dropout(x, self.rate) if torch.compiler.is_compiling() else F.dropout(x, self.rate)


def drawn_dropout(x: Tensor, rate: float) -> Tensor:
    """Drops by 16 random bits a value, four values a draw: half the time of torch's own on a processor."""
    draws = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), device=x.device)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(rate * 2**16) - 2**15
    return x * (keep * (1 / (1 - rate))).to(x.dtype)


def hashed_dropout(x: Tensor, rate: float) -> Tensor:
    """Drops by a hash of the place in x, keyed by a number from torch's generator: murmur3's finaliser without the steps
    that serve its last bits, as the first ones decide."""
    h = (torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) ^ random_key(x.device)) * -2048144789
    h = (h ^ (h >> 15 & 0x1FFFF)) * -1028477387
    keep = h >= round(rate * 2**32) - 2**31
    return torch.where(keep, x * (1 / (1 - rate)), 0)


def random_key(device: torch.device) -> Tensor:
    """One number from torch's generator, for a kernel to hash with."""
    return torch.randint(-(2**31), 2**31, (), dtype=torch.int32, device=device)
