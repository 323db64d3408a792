import pytest
import torch

from bertkit.errors import InputError
from bertkit.model.config import sized
from bertkit.model.device import compiled, find_device, flops_per_token, peak_flops


def test_devices_are_found_or_refused():
    assert find_device("cpu").type == "cpu"
    for bad in ("gpu!", "cuda:99"):
        with pytest.raises(InputError, match="device"):
            find_device(bad)
    assert peak_flops(torch.device("cpu")) is None


def test_arithmetic_of_bert_base():
    """Six times the parameters of the blocks, and a little for attention and head."""
    assert 6 * 85e6 < flops_per_token(sized("base"), 128, 0.15) < 6 * 95e6


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def test_compiled_networks_may_meet_many_shapes(monkeypatch):
    torch._dynamo.reset()
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, options, **settings: compile(module, backend="eager", **settings))
    network = compiled(Doubled())
    for rows in range(2, 20):
        assert network(torch.ones(rows)).sum() == 2 * rows
