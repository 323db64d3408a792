import torch

from bertkit.model.init import truncated_normal_


def test_weights_are_a_normal_distribution_cut_at_two_deviations():
    torch.manual_seed(0)
    weight, normal = torch.empty(1000, 1000), torch.distributions.Normal(0.0, 0.02)
    truncated_normal_(weight, 0.02)
    assert weight.abs().max() <= 0.04 + 1e-7
    at = torch.linspace(-0.04, 0.04, 41)
    below = (normal.cdf(at) - normal.cdf(at[0])) / (normal.cdf(at[-1]) - normal.cdf(at[0]))
    found = torch.searchsorted(weight.flatten().sort().values, at) / weight.numel()
    torch.testing.assert_close(found, below, atol=2e-3, rtol=0)
