"""Dropout: each value is dropped with the given probability, and the rest are scaled up.

When compiled, the decision is a hash of the value's position and one random number: a handful of integer instructions that
the compiler fuses into neighbouring kernels, and recomputes for the gradient instead of keeping a mask.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Active in training only."""

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
    """Drops by 16 random bits per value, four values per draw: half the time of torch's own on a CPU."""
    draws = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), device=x.device)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(rate * 2**16) - 2**15
    return x * (keep * (1 / (1 - rate))).to(x.dtype)


def hashed_dropout(x: Tensor, rate: float) -> Tensor:
    """Drops by a hash of the position in x, keyed with a number from torch's generator: murmur3's finalizer without the
    steps that only mix the low bits, as the high bits decide."""
    h = (torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) ^ random_key(x.device)) * -2048144789
    h = (h ^ (h >> 15 & 0x1FFFF)) * -1028477387
    keep = h >= round(rate * 2**32) - 2**31
    return torch.where(keep, x * (1 / (1 - rate)), 0)


def random_key(device: torch.device) -> Tensor:
    """Returns one number from torch's generator, as a key for hashes in kernels."""
    return torch.randint(-(2**31), 2**31, (), dtype=torch.int32, device=device)
