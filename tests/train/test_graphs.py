"""Recorded steps: the same losses as without, dropout and several rows a step included, and taken up bit for bit."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.records import RECORDS, SENTENCES
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_store

import bertkit
from bertkit.model.config import MEMBERS, Config
from bertkit.tasks import TASKS
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer
from bertkit.train.finetuning import tuned_network, tuning_job
from bertkit.train.fit import Trainer, fit
from bertkit.train.graphs import Recorder, tensors_of
from bertkit.train.recipe import Optimizer, Tuning

WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal"] for word in text.split()})
TOKENIZER = Tokenizer.from_vocabulary([*SPECIALS, *WORDS], cased=False)
CONFIG = Config(vocabulary=len(TOKENIZER), layers=2, width=64, heads=2, feedforward=128, positions=64)
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def job_of(run: Path, name: str, **changes):
    kind, records = TASKS[name], RECORDS[name]
    task = kind(kind.learn(TaskSettings(task=name, max_length=32), records))
    plain = dict(task=task.settings, precision="bf16", compile=False, epochs=8.0, batch=4, log_every=1)
    recipe = Tuning(**(plain | dict(optimizer=Optimizer(lr=2e-4)) | changes))  # faster, rounding alone leads elsewhere
    torch.manual_seed(5)
    network = tuned_network(recipe, task, Pretraining(CONFIG), records)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return tuning_job(run, recipe, task, network, TOKENIZER, records, [], device, lambda to: None)


@on_cuda
@pytest.mark.parametrize("rows", [32_768, 40], ids=["one row", "several rows"])
@pytest.mark.parametrize("name", ["classification", "tagging", "qa"])
def test_recorded_or_not_the_run_is_the_same(tmp_path, name, rows):
    plain = job_of(tmp_path / "plain", name, graphs=True, row_tokens=rows)
    recorded = job_of(tmp_path / "recorded", name, graphs=True, row_tokens=rows)
    assert plain.feed.inputs.shapes
    fit(replace(plain, recipe=replace(plain.recipe, graphs=False), quiet=True))
    fit(replace(recorded, quiet=True))
    losses = [[row["loss"] for row in metrics(run.run)] for run in (plain, recorded)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@on_cuda
@pytest.mark.parametrize("objective", ["masked", "replaced", "both"])
def test_recorded_or_not_pre_training_is_the_same(tmp_path, objective):
    store, losses = made_up_store(tmp_path / "store", 300), []
    name = "token_loss" if objective == "replaced" else "masked_loss"
    member = dict(objective=objective, pairs="none", family="bert" if objective == "masked" else "electra")
    for graphs in (False, True):
        recipe = replace(without_dropout(SMALL_RUN), graphs=graphs, **member)
        recipe = replace(recipe, config=recipe.config.with_(**MEMBERS[recipe.family]))
        bertkit.pretrain(store.path, tmp_path / str(graphs), recipe=recipe, workers=0, quiet=True)
        losses.append([row[name] for row in metrics(tmp_path / str(graphs)) if name in row])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@on_cuda
def test_a_recorded_run_is_taken_up_bit_for_bit(tmp_path):
    whole = job_of(tmp_path / "whole", "classification", checkpoint_every=5)
    fit(replace(whole, quiet=True))
    broken = job_of(tmp_path / "broken", "classification", checkpoint_every=5)
    trainer = Trainer(broken)
    broken.run.mkdir()
    state = trainer.resume()
    while state.step < 5:
        trainer.step(state)
    trainer.checkpoint(state)
    again = Trainer(job_of(tmp_path / "broken", "classification", checkpoint_every=5))
    state = again.resume()
    assert state.step == 5
    while not again.finished(state):
        again.step(state)
    for name, parameter in again.network.named_parameters():
        torch.testing.assert_close(parameter, whole.network.get_parameter(name), rtol=0, atol=0)


class Row:
    def __init__(self, ids):
        self.ids = ids

    def map(self, change):
        return Row(change(self.ids))


class Played:
    """Stands in for a CUDA graph where there is none: a replay computes again what was recorded, from the same places into
    the same places, whatever the parameters' gradients are meanwhile."""

    @contextmanager
    def record(self):
        self.before = [parameter.grad for parameter in self.parameters]
        yield
        self.gradients = [parameter.grad for parameter in self.parameters]

    def replay(self):
        now = [parameter.grad for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            parameter.grad = gradient
        self.sums.copy_(self.compute())
        for parameter, place, gradient in zip(self.parameters, self.gradients, now, strict=True):
            if place is not None:
                place.copy_(parameter.grad)
            parameter.grad = gradient


@pytest.fixture
def device(monkeypatch):
    """A GPU, or what Recorder asks of one."""
    if torch.cuda.is_available():
        return "cuda"
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Played)
    monkeypatch.setattr(torch.cuda, "graph", Played.record)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return "cpu"


def test_recording_leaves_no_trace(device, monkeypatch):
    """Gradients that were there stay, a second row adds to the first, and after a step a row begins anew; what has no
    gradient gets none."""
    weight, other, aside = (torch.nn.Parameter(torch.ones(3, device=device)) for _ in range(3))
    weight.grad = torch.full_like(weight, 10.0)

    def backward(row, shares):
        def compute():
            total = (weight * (row.ids if len(row.ids) == 3 else row.ids[:3] * other)).sum()
            (total * shares.sum()).backward()
            return total.detach()

        sums = compute()
        Played.parameters, Played.compute, Played.sums = [weight, other, aside], staticmethod(compute), sums
        return sums

    recorder = Recorder(backward, [weight, other, aside])
    for factor in (1.0, 2.0):
        assert recorder(Row(factor * torch.arange(3.0)), torch.tensor([2.0])).item() == 3 * factor
    assert weight.grad.tolist() == [10.0, 16.0, 22.0]
    weight.grad = None
    recorder(Row(torch.arange(3.0)), torch.tensor([1.0]))
    assert weight.grad.tolist() == [0.0, 1.0, 2.0] and other.grad is None
    assert len(recorder.recordings) == 1
    recorder(Row(torch.arange(4.0)), torch.tensor([1.0]))
    assert weight.grad.tolist() == [0.0, 2.0, 4.0] and other.grad.tolist() == [0.0, 1.0, 2.0] and aside.grad is None
    assert len(recorder.recordings) == 2


def test_the_tensors_of_a_row_come_in_order(tmp_path):
    row = job_of(tmp_path / "r", "qa").feed.inputs.rows(0)[0][0]
    found = tensors_of(row)
    assert any(tensor is row.batch.ids for tensor in found)
    assert found[-1] is row.targets
    assert [t.shape for t in found] == [t.shape for t in tensors_of(row.map(torch.clone))]
