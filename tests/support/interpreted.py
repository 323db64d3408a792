"""Our Triton kernels in Triton's interpreter, beside plain torch: what they compute can be seen without a GPU.

`TRITON_INTERPRET=1 python interpreted.py NAME`, in a process of its own: Triton is told when it is imported.
"""

import sys
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from bertkit.model.attention import attend
from bertkit.model.device import compiled
from bertkit.model.dropout import random_key
from bertkit.model.kernels.added_norm import added_norm_with_gradient
from bertkit.model.kernels.gelu import quick_gated_gelu, quick_gelu
from bertkit.model.kernels.short import attend_short
from bertkit.model.kernels.tiles import attend_tiles
from bertkit.model.kernels.turning import turned_with_gradient
from bertkit.model.positions import turned
from support.batches import pack
from support.reference import draw_sequences

CHIP = SimpleNamespace(multi_processor_count=2, shared_memory_per_multiprocessor=233_472)
KERNELS = {
    "short": (attend_short, [5, 1, 60, 64, 17]),
    "tiles": (lambda *given: attend_tiles(*given)[0], [5, 130, 1, 64, 200]),
}


def check_attention(name: str) -> None:
    """Values and gradients of sequences whose ends lie anywhere in a tile."""
    kernel, sizes = KERNELS[name]
    batch = pack(*draw_sequences(sizes, 1000))
    for causal in (False, True):
        given = torch.randn(sum(sizes), 3, 2, 16)
        agree(
            lambda qkv, causal=causal: kernel(qkv, batch.boundaries, batch.boundaries, max(sizes), 0.0, causal),
            lambda qkv, causal=causal: attend(qkv, batch, 0.0, causal),
            given,
        )


def check_dropped_attention(name: str) -> None:
    """Values that are unit vectors show the weights themselves; with the same ones dropped, plain torch agrees."""
    kernel, key, bounds = KERNELS[name][0], random_key(torch.device("cpu")), torch.tensor([0, 64], dtype=torch.int32)
    qkv = torch.randn(64, 3, 2, 64)
    qkv[:, 2] = torch.eye(64)[:, None]
    kept = kernel(qkv, bounds, key, 64, 0.3, False) > 0  # [64, H, 64]
    assert abs(kept.float().mean() - 0.7) < 0.03, kept.float().mean()

    def plain(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.permute(1, 2, 0, 3)
        return ((q @ k.mT / 8).softmax(-1) * kept.transpose(0, 1) / 0.7 @ v).transpose(0, 1)

    agree(lambda qkv: kernel(qkv, bounds, key, 64, 0.3, False), plain, qkv)


def check_gelu() -> None:
    agree(quick_gelu, lambda x, bias: F.gelu(x + bias), 3 * torch.randn(37, 600), torch.randn(600))
    agree(quick_gated_gelu, lambda h: F.gelu(h[:, :300]) * h[:, 300:], 3 * torch.randn(37, 600))


def check_added_norm() -> None:
    for count, width, rate in ((37, 48, 0.0), (9, 768, 0.2), (3, 3000, 0.2), (1, 3, 0.0)):
        key, zeros, ones = random_key(torch.device("cpu")), torch.zeros(count, width), torch.ones(count, width)
        kept = added_norm_with_gradient(zeros, ones, ones[0], zeros[0], key, 1e-12, rate)[0] >= 0 if rate else ones
        assert abs(kept.float().mean() - (1 - rate)) < 0.03, kept.float().mean()
        agree(
            lambda *given, key=key, rate=rate: added_norm_with_gradient(*given, key, 1e-12, rate)[0],
            lambda x, y, w, b, kept=kept, rate=rate: F.layer_norm(x + y * kept / (1 - rate), w.shape, w, b, 1e-12),
            *(torch.randn(shape) for shape in ((count, width), (count, width), (width,), (width,))),
        )


def check_norm() -> None:
    """Of what nothing is added to, with a bias and without."""
    for biased in (True, False):
        given = [torch.randn(37, 48), torch.randn(48), *([torch.randn(48)] if biased else [])]
        agree(
            lambda x, w, b=None: added_norm_with_gradient(x, None, w, b, w, 1e-5, 0.0)[0],
            lambda x, w, b=None: F.layer_norm(x, w.shape, w, b, 1e-5),
            *given,
        )


def check_turning() -> None:
    for count, heads, width in ((37, 2, 16), (5, 3, 24), (1, 1, 64)):
        angles = 6 * torch.rand(count, width // 2)
        agree(
            lambda qkv, angles=angles: turned_with_gradient(qkv, angles.cos(), angles.sin(), 1.0),
            lambda qkv, angles=angles: turned(qkv, angles.cos(), angles.sin()),
            torch.randn(count, 3, heads, width),
        )


def check_sums_in_place() -> None:
    """Compiled, products are added to a norm's gradient in its place, unless it is itself a factor, or read later on."""
    key, w, b = random_key(torch.device("cpu")), torch.randn(48), torch.randn(48)
    for rate, bent, in_place in ((0.0, True, True), (0.2, True, True), (0.2, False, True), (0.0, False, False)):

        def layer(x: torch.Tensor, m: torch.Tensor, rate=rate, bent=bent) -> torch.Tensor:
            y = torch.tanh(x @ m) @ m if bent else x @ m
            return added_norm_with_gradient(x, y, w, b, key, 1e-12, rate)[0]

        def twice(x: torch.Tensor, m: torch.Tensor, layer=layer) -> torch.Tensor:
            return layer(layer(x, m), m.sin())

        with torch.profiler.profile() as seen:
            agree(compiled(twice), twice, torch.randn(37, 48), torch.randn(48, 48) / 7)
        assert in_place == any(event.name == "bertkit::add_product" for event in seen.events()), (rate, bent)


def agree(mine, plain, *given: torch.Tensor) -> None:
    """Both give the same, and the same gradients."""
    found = []
    for function in (mine, plain):
        inputs = [one.clone().requires_grad_() for one in given]
        out = function(*inputs)
        out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
        found.append([out, *(one.grad for one in inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


CHECKS = {
    **{f"attention, {name}": lambda name=name: check_attention(name) for name in KERNELS},
    **{f"dropped attention, {name}": lambda name=name: check_dropped_attention(name) for name in KERNELS},
    "gelu": check_gelu,
    "added norm": check_added_norm,
    "norm": check_norm,
    "turning": check_turning,
    "sums in place": check_sums_in_place,
}

if __name__ == "__main__":
    torch.cuda.get_device_properties = lambda device: CHIP
    torch.manual_seed(0)
    CHECKS[sys.argv[1]]()
