"""Every loss against its formula, written out plainly; and where a head stands."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.inputs import TaskBatch, pack_units
from bertkit.data.windows import NOTHING, Input, Layout
from bertkit.data.windows import known as known_of
from bertkit.model.config import Config
from bertkit.tasks import TASKS
from bertkit.tasks.network import LOSSES, SimilarityNetwork, TaskNetwork, build_network
from bertkit.tasks.task import TaskSettings

CONFIG = Config(vocabulary=50, layers=1, width=16, heads=2, feedforward=32, positions=32, dropout=0.0, attention_dropout=0.0)
seeds = st.integers(0, 2**32)


class Weighing:
    """What a loss asks of a network."""

    def __init__(self, weights, smoothing=0.0):
        self.weights, self.smoothing = torch.as_tensor(weights, dtype=torch.float32), smoothing


def data_of(targets, groups=None):
    targets = torch.as_tensor(targets)
    count = int(known_of(targets.numpy()).reshape(len(targets), -1).any(1).sum())
    places = torch.zeros(len(targets) if groups is None else len(groups), dtype=torch.long)
    return TaskBatch(None, places, places if groups is None else torch.as_tensor(groups), targets, count, 0)


def log_softmax(row):
    row = np.asarray(row, np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 12), st.integers(2, 6), st.sampled_from([0.0, 0.1, 0.5]), st.booleans())
def test_classes(seed, many, classes, smoothing, weighted):
    draw = np.random.default_rng(seed)
    logits = 3 * draw.normal(size=(many, classes)).astype(np.float32)
    targets = np.where(draw.random(many) < 0.2, NOTHING, draw.integers(classes, size=many))
    weights = draw.random(classes).astype(np.float32) + 0.1 if weighted else np.ones(classes, np.float32)
    loss, right = LOSSES["classes"](torch.from_numpy(logits), data_of(targets), Weighing(weights, smoothing))
    wanted, hits = 0.0, 0
    for row, target in zip(logits, targets, strict=True):
        if target != NOTHING:
            known = log_softmax(row)
            wanted -= (1 - smoothing) * weights[target] * known[target]
            wanted -= smoothing / classes * (weights * known).sum()
            hits += int(row.argmax() == target)
    assert loss.item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert right.item() == hits
    theirs = torch.nn.CrossEntropyLoss(torch.from_numpy(weights), label_smoothing=smoothing, reduction="none")
    known = targets != NOTHING
    each = theirs(torch.from_numpy(logits[known]), torch.from_numpy(targets[known]))
    assert loss.item() == pytest.approx(each.sum().item(), rel=1e-4, abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 12), st.integers(2, 5))
def test_flags(seed, many, classes):
    """Each place is the mean over its flags, a yes weighing as much as its class says."""
    draw = np.random.default_rng(seed)
    logits = 3 * draw.normal(size=(many, classes)).astype(np.float32)
    targets = draw.integers(2, size=(many, classes)).astype(np.float32)
    targets[draw.random(many) < 0.2] = np.nan
    weights = draw.random(classes).astype(np.float32) + 0.1
    loss, right = LOSSES["flags"](torch.from_numpy(logits), data_of(targets), Weighing(weights))
    wanted, hits = 0.0, 0
    for row, flags in zip(logits.astype(np.float64), targets, strict=True):
        if not np.isnan(flags[0]):
            yes = 1 / (1 + np.exp(-row))
            wanted -= (weights * flags * np.log(yes) + (1 - flags) * np.log(1 - yes)).mean()
            hits += int(((row > 0) == (flags > 0)).all())
    assert loss.item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert right.item() == hits


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 12))
def test_numbers(seed, many):
    draw = np.random.default_rng(seed)
    logits, targets = draw.normal(size=(2, many, 1)).astype(np.float32)
    targets[draw.random(many) < 0.2] = np.nan
    loss, right = LOSSES["numbers"](torch.from_numpy(logits), data_of(targets), Weighing([1.0]))
    known = ~np.isnan(targets)
    assert loss.item() == pytest.approx(((logits - targets)[known] ** 2).sum(), rel=1e-4, abs=1e-6)
    assert right.item() == (np.abs(logits - targets)[known] < 0.5).sum()


def test_any_number_can_be_a_target():
    targets = TASKS["regression"](TaskSettings(labels=("number",))).target(type("Cold", (), {"label": float(NOTHING)})())
    loss, _ = LOSSES["numbers"](torch.zeros(1, 1), data_of(targets), Weighing([1.0]))
    assert loss.item() == pytest.approx(1e4)


@settings(deadline=None, max_examples=60)
@given(seeds, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 2), st.integers(0, 5), st.floats(0, 80))
def test_picks(seed, sizes, outputs, filler, height):
    """In each group a softmax over its own places; the mean of start and end; filler changes nothing."""
    draw = np.random.default_rng(seed)
    many = sum(sizes)
    logits = (draw.normal(size=(many + filler, outputs)) * height).astype(np.float32)
    begins = np.cumsum(sizes) - sizes
    groups = np.append(np.repeat(np.arange(len(sizes)), sizes), np.full(filler, len(sizes) + 3))
    chosen = np.array([[draw.integers(size) for _ in range(outputs)] for size in sizes])
    unknown = draw.random(len(sizes)) < 0.2
    targets = np.where(unknown[:, None], NOTHING, chosen + begins[:, None])
    if filler:
        targets = np.concatenate([targets, np.full((3, outputs), NOTHING)])
    leaf = torch.from_numpy(logits).requires_grad_()
    loss, right = LOSSES["picks"](leaf, data_of(targets, groups), Weighing([1.0]))
    wanted, hits = 0.0, 0
    for group, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        if not unknown[group]:
            rows = logits[begin : begin + size]
            wanted -= np.mean([log_softmax(rows[:, out])[chosen[group, out]] for out in range(outputs)])
            hits += all(rows[chosen[group, out], out] == rows[:, out].max() for out in range(outputs))
    assert loss.item() == pytest.approx(wanted, rel=1e-4, abs=1e-3)
    assert right.item() == hits
    loss.backward()
    assert leaf.grad.isfinite().all()
    assert not leaf.grad[many:].any()
    for group, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        truth = torch.zeros(size, outputs)
        for out in range(outputs):
            truth[chosen[group, out], out] = 1
        probable = torch.from_numpy(logits[begin : begin + size]).softmax(0)
        expected = torch.zeros(size, outputs) if unknown[group] else (probable - truth) / outputs
        torch.testing.assert_close(leaf.grad[begin : begin + size], expected, atol=1e-4, rtol=0)


def test_spans_lose_as_transformers_counts():
    """The mean of the cross-entropies of start and end over each sequence's tokens."""
    draw = torch.Generator().manual_seed(0)
    start, end = torch.randn(2, 4, 7, generator=draw)
    at = torch.tensor([[1, 3], [0, 0], [6, 6], [2, 5]])
    theirs = (F.cross_entropy(start, at[:, 0]) + F.cross_entropy(end, at[:, 1])) / 2
    logits = torch.stack([start, end], -1).reshape(28, 2)
    data = data_of(at + 7 * torch.arange(4)[:, None], torch.arange(4).repeat_interleave(7))
    loss, _ = LOSSES["picks"](logits, data, Weighing([1.0]))
    assert loss.item() / data.known == pytest.approx(theirs.item(), rel=1e-5)


def test_a_head_is_one_linear_map_and_only_pooled_tasks_have_a_pooler():
    for name, kind in TASKS.items():
        task = kind(TaskSettings(task=name, labels=("a", "b", "c"), objective="cosine"))
        network = build_network(CONFIG, task)
        assert (network.encoder.pooler is not None) == (task.pooled or name == "similarity")  # which keeps one it had
        assert isinstance(network, SimilarityNetwork) == (name == "similarity")
        added = {key for key in network.state_dict() if not key.startswith("encoder.")}
        assert added == {"output.weight", "output.bias"}
        assert network.output.out_features == task.outputs
        assert not network.output.bias.any() and network.weights.eq(1).all()


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_logits_are_the_map_of_the_places(name):
    task = TASKS[name](TaskSettings(task=name, labels=("a", "b", "c")))
    network = build_network(CONFIG, task).eval()
    draw = np.random.default_rng(0)
    inputs = [Input(draw.integers(50, size=n), np.zeros(n, int), np.array([0, n - 1]), np.zeros(2, int)) for n in (5, 9, 2)]
    data = pack_units([[one] for one in inputs], Layout(capacity=1.0))
    alone = []
    for one in inputs:
        x = network.encoder(pack_units([[one]], Layout()).batch)[torch.from_numpy(one.places)]
        if task.pooled:
            x = torch.tanh(F.linear(x, network.encoder.pooler.dense.weight, network.encoder.pooler.dense.bias))
        alone.append(F.linear(x, network.output.weight, network.output.bias))
    torch.testing.assert_close(network.logits(data), torch.cat(alone), atol=1e-5, rtol=0)


def test_dropout_is_for_training_alone():
    task = TASKS["classification"](TaskSettings(labels=("a", "b")))
    network = TaskNetwork(CONFIG.with_(dropout=0.5), task)
    data = pack_units([[Input(np.arange(9), np.zeros(9, int), np.zeros(1, int), np.zeros(1, int))]], Layout())
    network.eval()
    assert torch.equal(network.logits(data), network.logits(data))
    network.train()
    assert not torch.equal(network.logits(data), network.logits(data))


def test_names_and_sums_belong_together():
    task = TASKS["classification"](TaskSettings(labels=("a", "b")))
    network = TaskNetwork(CONFIG, task)
    data = pack_units([[Input(np.arange(9), np.zeros(9, int), np.zeros(1, int), np.ones(1, int))]], Layout())
    assert len(network(data)) == len(network.names)
