from copy import deepcopy

import pytest
import torch

from bertkit.model.config import sized
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.optimizer import Optimizers
from bertkit.train.recipe import Optimizer


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Pretraining(sized("tiny", vocabulary=50))


def test_biases_and_norms_do_not_decay(network):
    groups = Optimizers(network, Optimizer()).groups
    assert {(alike.decay, parameter.ndim) for alike, members in groups.items() for parameter in members} == {
        (0.01, 2),
        (0.0, 1),
    }


def test_muon_takes_the_matrices_of_the_blocks(network):
    optimizers, names = Optimizers(network, Optimizer(kind="muon")), {"muon": set(), "adamw": set()}
    for alike, members in optimizers.groups.items():
        names[alike.kind] |= {optimizers.names[parameter] for parameter in members}
    assert names["muon"] == {name for name, p in network.named_parameters() if "blocks" in name and p.ndim == 2}
    assert names["muon"] | names["adamw"] == set(dict(network.named_parameters()))
    assert not names["muon"] & names["adamw"]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_are_torchs(network, kind):
    """With several matrices of a shape, wide and tall; each of them as if it were alone."""
    other, settings = deepcopy(network), Optimizer(kind=kind, lr=0.01, weight_decay=0.1, muon_lr=0.02)
    mine, names = Optimizers(network, settings), {name for name, p in network.named_parameters() if kind == "adamw" or (
        "blocks" in name and p.ndim == 2)}  # fmt: skip
    chosen = [parameter for name, parameter in other.named_parameters() if name in names]
    assert len({parameter.shape for parameter in chosen}) < len(chosen)
    if kind == "muon":
        theirs = torch.optim.Muon(chosen, lr=0.5 * 0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    else:
        decays = [{"params": [p for p in chosen if p.ndim == n], "weight_decay": 0.1 * (n - 1)} for n in (1, 2)]
        theirs = torch.optim.AdamW(decays, lr=0.5 * 0.01, betas=(0.9, 0.999), eps=settings.epsilon)
    for step in range(3):
        for one in (network, other):
            generator = torch.Generator().manual_seed(step)
            for parameter in one.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        mine.step(0.5)
        theirs.step()
    for name in names:
        both = network.get_parameter(name), other.get_parameter(name)
        torch.testing.assert_close(*both, atol=2e-4 if kind == "muon" else 1e-6, rtol=1e-6)


def test_gradients_are_gone_after_a_step(network):
    optimizers = Optimizers(network, Optimizer(kind="muon"))
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_another_optimizer_goes_on_from_nought(network):
    """A fork may change it: what the one remembers is nothing to the other."""
    kept = Optimizers(network, Optimizer())
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    kept.step(1.0)
    muon = Optimizers(network, Optimizer(kind="muon"))
    muon.restore(kept.state())
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    muon.step(1.0)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_goes_out_and_in(network, kind):
    def run(optimizers, steps):
        for step in range(steps):
            torch.manual_seed(step)
            for parameter in network.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizers.step(0.5)

    first = Optimizers(network, Optimizer(kind=kind))
    run(first, 2)
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    run(first, 2)
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(weights)
    second = Optimizers(network, Optimizer(kind=kind))
    second.restore(state)
    run(second, 2)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("most", [0.1, 1e6])
def test_clipped_gradients_are_torchs(network, kind, most):
    copy, found = deepcopy(network), []
    for one, clip in (
        (network, Optimizers.clip),
        (copy, lambda mine, most: torch.nn.utils.clip_grad_norm_(mine.names, most)),
    ):
        optimizers = Optimizers(one, Optimizer(kind=kind, lr=0.1))
        torch.manual_seed(1)
        for parameter in one.parameters():
            parameter.grad = torch.randn_like(parameter)
        found.append(clip(optimizers, most))
        optimizers.step(1.0)
    torch.testing.assert_close(*found)
    for mine, other in zip(network.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)
