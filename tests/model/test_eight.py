"""Products in 8 bits: those of what is left of their factors, and a network that is nearly the same."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.batches import pack
from support.reference import draw_sequences
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_store

import bertkit
from bertkit.model.config import sized
from bertkit.model.device import compiled
from bertkit.model.encoder import Encoder

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("needs a CUDA device with 8-bit products", allow_module_level=True)

from bertkit.model.eight import GRADIENT, VALUE, WEIGHT, eight, in_eight_bits, product
from bertkit.model.kernels.gelu import gelu8, gelu8_gradient


def eighth(x, factor, kind=torch.float8_e4m3fn):
    """What is left of x in 8 bits, in 32."""
    return eight(x, factor, kind).float() / factor


def test_products_in_eight_bits_are_those_of_what_is_left():
    torch.manual_seed(0)
    x, weight = torch.randn(200, 256, device="cuda"), torch.randn(512, 256, device="cuda") / 16
    bias = torch.randn(512, device="cuda", dtype=torch.bfloat16)
    found = product(eight(x, VALUE), eight(weight, WEIGHT), VALUE * WEIGHT, bias)
    exact = eighth(x, VALUE) @ eighth(weight, WEIGHT).T + bias.float()
    assert (found.float() - exact).norm() < 0.005 * exact.norm()
    assert (found.float() - x @ weight.T - bias.float()).norm() < 0.05 * exact.norm()


def test_what_does_not_fit_eight_bits_becomes_the_largest_there_is():
    x = torch.tensor([1e9, -1e9, 1e-9, 3.0], device="cuda")
    assert eighth(x, 1.0).tolist() == [448, -448, 0, 3]
    assert eighth(x, 1.0, torch.float8_e5m2).tolist() == [57344, -57344, 0, 3]


@pytest.mark.parametrize("shape", [(1, 3072), (300, 3072), (129, 48)])
def test_gelu_in_eight_bits(shape):
    torch.manual_seed(0)
    x, upper = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * size for size in (1, 1e-4))
    bias = torch.randn(shape[1], device="cuda")
    plain, added = x.float().requires_grad_(), bias.clone().requires_grad_()
    exact = F.gelu(plain + added)
    exact.backward(upper.float())
    forward = gelu8(x, bias, VALUE).float() / VALUE
    assert (forward - exact).norm() < 0.04 * exact.norm()
    dx, dx8, again, db = gelu8_gradient(x, bias, upper, GRADIENT)
    assert (dx.float() - plain.grad).norm() < 0.005 * plain.grad.norm()
    assert (dx8.float() / GRADIENT - plain.grad).norm() < 0.1 * plain.grad.norm()
    assert (again.float() - exact).norm() < 0.005 * exact.norm()
    torch.testing.assert_close(db, added.grad, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("settings", [{}, dict(norm="pre"), dict(gated=True, bias=False)], ids=["bert", "pre", "gated"])
@pytest.mark.parametrize("compile", [False, True])
def test_an_encoder_in_eight_bits_is_nearly_the_same(settings, compile):
    """Gradients of all weights, too; the loss is as small as that of a batch of some thousand pieces."""
    torch.manual_seed(0)
    plain = Encoder(sized("tiny", dropout=0.0, attention_dropout=0.0, **settings)).cuda().train()
    short = deepcopy(plain)
    in_eight_bits(short)
    batch = pack(*draw_sequences([5, 1, 128, 127, 2, 64], 1000)).to("cuda")
    states = []
    for network in (plain, short):
        forward = compiled(network) if compile else network
        with torch.autocast("cuda", torch.bfloat16):
            states.append(forward(batch).float())
        (states[-1] * torch.linspace(-1, 1, states[-1].shape[1], device="cuda")).sum().mul(1e-4).backward()
    assert (states[0] - states[1]).norm() < 0.06 * states[0].norm()
    for (name, first), second in zip(plain.named_parameters(), short.parameters(), strict=True):
        if first.grad is not None and first.grad.norm() > 1e-6:
            assert (first.grad - second.grad).norm() < 0.12 * first.grad.norm(), name
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in short.named_parameters()]


@pytest.mark.parametrize("settings", [dict(compile=True), dict(graphs=True)], ids=["compiled", "recorded"])
def test_a_run_in_eight_bits_learns_the_same(settings, tmp_path):
    store, losses = made_up_store(tmp_path / "s", 300).path, []
    for precision in ("bf16", "fp8"):
        recipe = replace(without_dropout(SMALL_RUN), precision=precision, **settings)
        bertkit.pretrain(store, tmp_path / precision, recipe=recipe, device="cuda", quiet=True)
        losses.append([row["masked_loss"] for row in metrics(tmp_path / precision) if "masked_loss" in row])
    assert losses[1] == pytest.approx(losses[0], rel=0.01) and losses[1] != losses[0]
