from types import SimpleNamespace

import pytest
import torch

from bertkit.errors import InputError
from bertkit.model.config import sized
from bertkit.model.device import compiled, find_device, flops_per_token, peak_flops, tokens_at_once


def test_devices_are_found_or_refused():
    assert find_device("cpu").type == "cpu"
    for bad in ("gpu!", "cuda:99"):
        with pytest.raises(InputError, match="device"):
            find_device(bad)
    assert peak_flops(torch.device("cpu")) is None


def test_arithmetic_of_bert_base():
    """Six times the parameters of the blocks, and a little for attention and head."""
    assert 6 * 85e6 < flops_per_token(sized("base"), 128, 0.15) < 6 * 95e6


@pytest.mark.parametrize(("gigabytes", "base", "large"), [(150, 131_072, 131_072), (24, 32_768, 16_384), (8, 8192, 1024)])
def test_tokens_that_memory_holds(monkeypatch, gigabytes, base, large):
    """At least so many; BERT-base took 37.4 GiB for 131,072 tokens, large 100.4, weights and all."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 1e9))
    cuda, taken = torch.device("cuda"), {"base": 37.4 / 131_072, "large": 100.4 / 131_072}
    for size, least in (("base", base), ("large", large)):
        found = tokens_at_once(cuda, "bf16", sized(size))
        assert least <= found < 2 * least or found == 131_072
        assert found * taken[size] * 2**30 < 0.9 * gigabytes * 1e9
    assert tokens_at_once(cuda, "bf16", sized("base", place="relative")) <= 16_384
    assert tokens_at_once(cuda, "fp32", sized("base")) <= 16_384
    assert tokens_at_once(torch.device("cpu"), "bf16", sized("base")) == 8192


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
