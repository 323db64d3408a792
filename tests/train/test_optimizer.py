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
    groups = Optimizers(network, Optimizer()).parts[0][0].param_groups
    assert groups[0]["weight_decay"] == 0.01
    assert groups[1]["weight_decay"] == 0
    assert all(parameter.ndim == 2 for parameter in groups[0]["params"])
    assert all(parameter.ndim == 1 for parameter in groups[1]["params"])


def test_muon_takes_the_matrices_of_the_blocks(network):
    (adam, _), (muon, _) = Optimizers(network, Optimizer(kind="muon")).parts
    names = {parameter: name for name, parameter in network.named_parameters()}
    by_muon = {names[p] for group in muon.param_groups for p in group["params"]}
    by_adam = {names[p] for group in adam.param_groups for p in group["params"]}
    assert by_muon == {name for name, p in network.named_parameters() if "blocks" in name and p.ndim == 2}
    assert by_muon | by_adam == set(names.values())
    assert not by_muon & by_adam


def test_muon_is_torchs(network):
    """With matrices alone and several of a shape, wide and tall; each of them as if it were alone."""
    other = deepcopy(network)
    mine = Optimizers(network, Optimizer(kind="muon", weight_decay=0.1, muon_lr=0.02)).parts[1][0]
    names = {parameter: name for name, parameter in network.named_parameters()}
    chosen = [names[p] for p in mine.param_groups[0]["params"]]
    theirs = torch.optim.Muon(
        [other.get_parameter(name) for name in chosen], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    assert len({network.get_parameter(name).shape for name in chosen}) < len(chosen)
    mine.param_groups[0]["lr"] = 0.02
    for step in range(3):
        for name in chosen:
            for one in (network, other):
                parameter = one.get_parameter(name)
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        mine.step()
        theirs.step()
    for name in chosen:
        torch.testing.assert_close(network.get_parameter(name), other.get_parameter(name), atol=2e-4, rtol=0)


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
