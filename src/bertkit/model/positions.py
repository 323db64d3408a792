"""Position information for attention: none if the embeddings have it, rotary angles, or a table of distances.

T tokens, D width, K head width, S distances to each side.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.norm import Norm


class Learned(nn.Module):
    """Positions are a table in the embeddings (section 3.2); attention needs nothing more."""

    def __init__(self, config: Config):
        super().__init__()

    def forward(self, batch: Batch) -> None:
        return None


class Rotary(nn.Module):
    """Rotary position embedding: rotates queries and keys by angles that grow with the position, fast for the first pair of
    values, slowly for the last (Su et al., 2021). Blocks with a window use another base."""

    def __init__(self, config: Config):
        super().__init__()
        self.bases, self.width = (config.rotary_base, config.local_rotary_base), config.head_width

    def forward(self, batch: Batch) -> Tensor:
        """Returns cosine and sine for both bases [2, 2, T, K / 2]."""
        steps = torch.arange(0, self.width, 2, device=batch.ids.device) / self.width
        speeds = torch.stack([base**-steps for base in self.bases])  # [2, K / 2]
        angles = batch.positions[:, None] * speeds[:, None]  # [2, T, K / 2]
        return torch.stack([angles.cos(), angles.sin()], 1)


def turned(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates the queries and keys of [T, 3, H, K], not the values: half precision on a GPU in one kernel, others in place
    where that is safe; under the compiler, which is as fast, in plain torch."""
    eager = not torch.compiler.is_compiling()
    if eager and qkv.is_cuda and qkv.dtype != torch.float32:
        from bertkit.model.kernels.turning import quick_turned, turned_with_gradient  # Triton comes only with CUDA

        return (turned_with_gradient if torch.is_grad_enabled() else quick_turned)(qkv, cosine, sine, 1.0)
    if eager and torch.is_grad_enabled():
        return _Turned.apply(qkv, cosine, sine)
    if eager and torch.is_inference_mode_enabled():
        return _turn(qkv, cosine, sine)
    a, b = qkv[:, :2].chunk(2, -1)  # [T, 2, H, K / 2] each
    cosine, sine = (part[:, None, None].to(qkv.dtype) for part in (cosine, sine))
    qk = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
    return torch.cat([qk, qkv[:, 2:]], 1)


def _turn(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates in place: half of the time on a CPU, or a quarter without the copies that a gradient needs."""
    a, b = qkv[:, :2].chunk(2, -1)
    cosine, sine, before = cosine[:, None, None].to(qkv.dtype), sine[:, None, None].to(qkv.dtype), a.clone()
    a.mul_(cosine).addcmul_(b, sine, value=-1)
    b.mul_(cosine).addcmul_(before, sine)
    return qkv


class _Turned(torch.autograd.Function):
    """Rotates the gradient back."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(qkv.clone(), cosine, sine)

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        return _turn(upper.clone(), cosine, -sine), None, None


class Relative(nn.Module):
    """A vector for each distance from -S to S - 1, with logarithmic buckets for large ones (He et al., 2021)."""

    def __init__(self, config: Config):
        super().__init__()
        self.table = nn.Embedding(2 * config.buckets, config.width)
        self.norm = Norm(config.width, eps=config.norm_epsilon)

    def forward(self, batch: Batch) -> Tensor:
        return self.norm(self.table.weight)  # [2 S, D]


def bucket_distances(distance: Tensor, buckets: int, positions: int) -> Tensor:
    """Returns the table's rows for distances from key to query: exact up to half the buckets, logarithmic beyond."""
    half = buckets // 2
    share = torch.log(distance.abs().clamp(min=1) / half) / torch.log(torch.tensor((positions - 1) / half))
    far = half + torch.ceil(share * (half - 1))
    bucket = torch.where(distance.abs() <= half, distance, distance.sign() * far.long())
    return (bucket + buckets).clamp(0, 2 * buckets - 1)


POSITIONS = {"learned": Learned, "rotary": Rotary, "relative": Relative}
