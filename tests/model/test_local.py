"""Window attention in blocks: the same numbers as a masked softmax, at a cost that grows with the length alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertkit.model.local import attend_near


def masked(q, k, v, allowed):
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~allowed, float("-inf")).softmax(-1) @ v


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_it_is_a_masked_softmax(length, window, seed):
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 2, 3, length, 8)
    sizes = torch.randint(1, length + 1, (2,))
    seen = torch.arange(length) < sizes[:, None]
    at = torch.arange(length)
    allowed = ((at[:, None] - at).abs() <= window) & seen[:, None, None]
    found = attend_near(q, k, v, seen, window, 0.0)
    expected = masked(q, k, v, allowed)
    for row, size in enumerate(sizes):
        torch.testing.assert_close(found[row, :, :size], expected[row, :, :size], atol=1e-5, rtol=1e-5)


def test_far_tokens_are_seen_by_all():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 30, 8)
    seen = torch.ones(1, 30, dtype=torch.bool)
    seen[:, :2] = False  # the first two are seen as far ones instead
    there = torch.tensor([[True, True, False]])
    far = (k[:, :, :3], v[:, :, :3], there)
    at = torch.arange(30)
    allowed = ((at[:, None] - at).abs() <= 4) | (at < 2)
    found = attend_near(q, k, v, seen, 4, 0.0, far)
    torch.testing.assert_close(found[:, :, 2:], masked(q, k, v, allowed)[:, :, 2:], atol=1e-5, rtol=1e-5)


def test_gradients_are_numbers_where_nothing_is_read():
    q = torch.randn(1, 1, 9, 4, requires_grad=True)
    seen = torch.zeros(1, 9, dtype=torch.bool)
    seen[0, 0] = True
    attend_near(q, q, q, seen, 2, 0.0)[:, :, :1].sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("length", [512, 4096])
def test_work_grows_with_the_length_alone(length):
    """Counted, not timed: products of matrices for each token are as many at any length."""
    q = torch.randn(1, 2, length, 16)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        attend_near(q, q, q, torch.ones(1, length, dtype=torch.bool), 64, 0.0)
    assert counter.get_total_flops() == 2 * length * 2 * 3 * 64 * 16 * 2
