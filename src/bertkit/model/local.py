"""Attention within a window, at a cost linear in the length.

A grid of n sequences of length L is cut into blocks as long as the window w; a block's tokens attend to three blocks, their
own and its two neighbours. H heads, K head width, G global tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Far = tuple[Tensor, Tensor, Tensor] | None  # global keys and values [n, H, G, K], and which of them exist [n, G]


def attend_near(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, window: int, dropout: float, far: Far = None) -> Tensor:
    """Returns attention outputs for q, k and v [n, H, L, K]. `seen` [n, L]: which keys are visible within the window."""
    n, heads, length, width = q.shape
    blocks = (length + window - 1) // window
    fill = blocks * window - length
    q = F.pad(q, (0, 0, 0, fill)).view(n, heads, blocks, window, width).transpose(1, 2).flatten(0, 1)  # [n·b, H, w, K]
    k, v = (_neighbours(x, window, fill) for x in (k, v))  # [n·b, H, 3 w, K]
    mask = _near(seen, window, fill)  # [n·b, 1, w, 3 w]
    if far is not None:
        k, v = (torch.cat([x, y.repeat_interleave(blocks, 0)], 2) for x, y in zip((k, v), far, strict=False))
        there = far[2].repeat_interleave(blocks, 0)[:, None, None].expand(-1, -1, window, -1)
        mask = torch.cat([mask, there], 3)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return mixed.view(n, blocks, heads, window, width).transpose(1, 2).reshape(n, heads, -1, width)[:, :, :length]


def _neighbours(x: Tensor, window: int, fill: int) -> Tensor:
    """Gathers for each block of [n, H, L, K] the three blocks that it attends to [n·b, H, 3 w, K]."""
    x = F.pad(x, (0, 0, window, window + fill)).unflatten(2, (-1, window))  # [n, H, b + 2, w, K]
    return torch.cat([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]], 3).transpose(1, 2).flatten(0, 1)


def _near(seen: Tensor, window: int, fill: int) -> Tensor:
    """Returns which keys a block's queries may see. Each token sees itself, so that even unused outputs are not NaN."""
    there = _neighbours(seen[:, None, :, None], window, fill).transpose(2, 3)  # [n·b, 1, 1, 3 w]
    own = torch.arange(window, device=seen.device)[:, None] + window
    distance = (own - torch.arange(3 * window, device=seen.device)).abs()  # [w, 3 w]
    return (distance <= window) & there | (distance == 0)
