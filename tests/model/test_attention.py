"""A sequence's result does not depend on its batch-mates, whatever the way attention takes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import pack
from support.reference import draw_sequences

from bertkit.data.packing import Shapes
from bertkit.model.attention import attend
from bertkit.model.config import sized
from bertkit.model.encoder import Encoder

SHAPES = Shapes(budget=256, lengths=(8, 16, 32, 64))


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return Encoder(sized("tiny", vocabulary=100, positions=64)).eval()


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_batch_mates_do_not_matter(encoder, sizes, seed):
    ids, segments = draw_sequences(sizes, 100, seed=seed)
    with torch.no_grad():
        together = encoder(pack(ids, segments)).split(sizes)
        for row, one, segment in zip(together, ids, segments, strict=True):
            torch.testing.assert_close(row, encoder(pack([one], [segment])), atol=1e-5, rtol=0)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_filler_does_not_matter(encoder, sizes, seed):
    ids, segments = draw_sequences(sizes, 100, seed=seed)
    with torch.no_grad():
        free = encoder(pack(ids, segments))
        fixed = encoder(pack(ids, segments, SHAPES))
    assert len(fixed) == SHAPES.budget
    assert torch.isfinite(fixed).all()
    torch.testing.assert_close(fixed[: len(free)], free, atol=1e-5, rtol=0)


def test_gradients_do_not_depend_on_the_grids(encoder):
    """The same loss through few grids, many grids and a fixed one."""
    sizes = [3, 60, 7, 31, 18]
    ids, segments = draw_sequences(sizes, 100)
    gradients = []
    for shapes in (None, SHAPES):
        encoder.zero_grad()
        encoder(pack(ids, segments, shapes))[: sum(sizes)].square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-4)
    assert np.isfinite(gradients[0].numpy()).all()


@pytest.mark.parametrize(("dropout", "window"), [(0.0, 0), (0.0, 4), (0.2, 0)])
def test_a_processor_learns_in_32_bits(dropout, window):
    """Narrow values under autocast have the gradients of wide ones, rounded once."""
    batch, found = pack(*draw_sequences([9, 40, 3], 100)), []
    narrow = torch.randn(52, 3, 2, 16).bfloat16()
    for kind in (torch.bfloat16, torch.float32):
        qkv = narrow.to(kind, copy=True).requires_grad_()
        torch.manual_seed(0)
        with torch.autocast("cpu", enabled=kind is torch.bfloat16):
            mixed = attend(qkv, batch, dropout, window=window)
        mixed.backward(torch.ones(52, 2, 16, dtype=kind))
        found.append([mixed.detach().bfloat16(), qkv.grad.bfloat16()])
        assert mixed.dtype == kind
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("sizes", [[5], [3, 60, 7, 31, 18], [2] * 40 + [64] * 3])
def test_attention_with_dropout_is_the_same_but_for_what_drops(sizes):
    batch = pack(draw_sequences(sizes, 100)[0])
    torch.manual_seed(0)
    qkv = torch.randn(sum(sizes), 3, 2, 8, requires_grad=True)
    found = []
    for rate in (0.0, 1e-6):  # so seldom that nothing is dropped
        mixed = attend(qkv, batch, rate)
        found.append((mixed, *torch.autograd.grad(mixed.square().sum(), qkv)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    mean = torch.stack([attend(qkv.detach(), batch, 0.1) for _ in range(400)]).mean(0)
    assert (mean - found[0][0]).abs().mean() < 0.02
