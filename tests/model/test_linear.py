"""The product by oneDNN is torch's, and so are its gradients, wherever it may be used."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.exports import bundle_of
from support.records import RECORDS

from bertkit.data.inputs import lay_units
from bertkit.model import linear as home
from bertkit.model.batch import stepped
from bertkit.model.linear import Linear, linear
from bertkit.serve.predictor import Model

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a torch with oneDNN")


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    monkeypatch.setattr(home, "slow_product", lambda: True)


@pytest.mark.parametrize("tokens", [0, 1, 17, 300])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_values_and_gradients_are_those_of_torch(tokens, biased, weighted):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(tokens, 48), torch.randn(40, 48), torch.randn(40) if biased else None
    upper = torch.randn(tokens, 40) if weighted else torch.ones(()).expand(tokens, 40)
    found, expected = [], []
    for product, kind, to in ((linear, torch.float32, found), (F.linear, torch.float64, expected)):
        given = [None if one is None else one.detach().to(kind).requires_grad_() for one in (x, weight, bias)]
        y = product(*given)
        y.backward(upper.to(kind))
        to += [y.detach(), *(one.grad for one in given if one is not None)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), atol=1e-4, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(linear(x, weight, bias), found[0])


def test_only_wanted_gradients_are_computed(monkeypatch):
    layer, x = Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    layer.requires_grad_(False)
    counted, product = [], home._product
    monkeypatch.setattr(home, "_product", lambda *given: counted.append(1) or product(*given))
    layer(x).sum().backward()
    assert len(counted) == 2 and layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 8))


def test_elsewhere_it_is_torch_s_own(monkeypatch):
    """Under autocast, in other types, compiled or traced for an export."""
    monkeypatch.setattr(home, "_product", None)
    layer, x = Linear(8, 4), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert Linear(8, 4).double()(x.double()).dtype == torch.float64
    assert torch.jit.trace(layer, x, check_trace=False)(x).shape == (3, 4)
    monkeypatch.setattr(home, "slow_product", lambda: False)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_rows_have_few_lengths_each_an_eighth_longer_at_most():
    lengths = [stepped(count) for count in range(1, 5000)]
    assert all(count <= length <= max(count + 7, 1.125 * count) for count, length in enumerate(lengths, start=1))
    assert lengths == sorted(lengths) and len({*lengths}) < 64
    assert all(stepped(length) == length for length in lengths)


@pytest.mark.parametrize("task", ["", "classification", "tagging", "qa", "choice", "similarity"])
def test_filler_changes_no_answer(task, monkeypatch):
    """Of texts, pieces, sequences and tasks, by each kind of pooling."""
    bundle = bundle_of("bert", task)
    monkeypatch.setattr(home, "slow_product", lambda: False)
    expected = told(bundle)
    monkeypatch.setattr(home, "slow_product", lambda: True)
    for one, other in zip(expected, told(bundle), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)


def told(bundle) -> list[np.ndarray]:
    """Everything that a model says of a few texts, and of its task's records."""
    model, texts = Model(bundle, device="cpu"), ["the cat", "the dog went to the river .", "the"]
    found = [model.embed(texts, pooling=pooling) for pooling in ("mean", "max", "cls")]
    found += [one.vectors for one in model.features(texts, layers=[0, -1])] + model.encode([[2, 5, 3], [2, 6, 7, 3]])
    found += [one.weights for one in model.attention(texts)]
    if not bundle.task:
        return [*found, np.array([chance for _, chance in model.fill("the [MASK] went")[0]]), model.next(texts, texts)]
    records = RECORDS[bundle.task.settings.task]
    units = bundle.task.units(records, model.tokenizer)
    return [*found, model.runner.tell(lay_units(units, bundle.task.layout), model.device, "fp32")]


def test_a_row_s_result_does_not_depend_on_the_others():
    torch.manual_seed(0)
    layer, x = Linear(96, 64), torch.randn(500, 96)
    with torch.inference_mode():
        whole = layer(x)
        for begin, end in ((0, 2), (3, 40), (100, 401)):
            torch.testing.assert_close(layer(x[begin:end]), whole[begin:end], atol=1e-5, rtol=0)
