"""Fine-tuning as a job for the loop: what is taken from the model, what learns how fast, and that a step is a step however
it is cut up or broken off."""

import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.records import RECORDS, SENTENCES
from support.runs import metrics

from bertkit.bundle.bundle import Bundle, save_bundle
from bertkit.data.records import Record
from bertkit.errors import InputError, TrainingError
from bertkit.model.config import MEMBERS, Config
from bertkit.model.device import find_device
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer
from bertkit.train import fit as fit_module
from bertkit.train.checkpoint import State
from bertkit.train.finetuning import _class_weights, _resolved, _shares, tuned_network, tuning_job
from bertkit.train.fit import Trainer, fit
from bertkit.train.optimizer import Optimizers
from bertkit.train.recipe import Optimizer, Tuning, change
from bertkit.tuning import _plans, finetune

CPU = find_device("cpu")
WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal"] for word in text.split()})
TOKENIZER = Tokenizer.from_vocabulary([*SPECIALS, *WORDS], cased=False)
CONFIG = Config(
    vocabulary=len(TOKENIZER), layers=3, width=16, heads=2, feedforward=32, positions=64, dropout=0.0, attention_dropout=0.0
)


def learned(name, **changes):
    kind = TASKS[name]
    return kind(kind.learn(TaskSettings(task=name, max_length=32, **changes), RECORDS[name]))


def recipe_of(task, **changes):
    plain = dict(task=task.settings, precision="fp32", compile=False, epochs=3.0, batch=4, log_every=1)
    return Tuning(**(plain | dict(optimizer=Optimizer(lr=1e-4)) | changes))


def source_of(config=CONFIG, **heads):
    torch.manual_seed(5)
    network = Pretraining(config, **heads)
    with torch.no_grad():  # as if it had been trained: nothing is as it began
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network


def tuned(name="classification", source=None, **changes):
    task = learned(name)
    return tuned_network(recipe_of(task, **changes), task, source or source_of(), RECORDS[name])


def job_of(folder, name="classification", *, dev=True, network=None, config=CONFIG, **changes):
    task, records = learned(name), RECORDS[name]
    recipe = recipe_of(task, **changes)
    network = network or tuned_network(recipe, task, source_of(config), records)
    bundle = Bundle(network, TOKENIZER, task=task)
    held = records if dev else []
    job = tuning_job(folder, recipe, task, network, TOKENIZER, records, held, CPU, lambda to: save_bundle(bundle, to))
    return replace(job, quiet=True)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What learns how fast


def test_each_layer_learns_slower_than_the_one_above():
    share = _shares(3, 0.5)
    assert share("output.weight") == share("encoder.pooler.dense.weight") == 1.0
    assert [share(f"encoder.blocks.{layer}.attention.output.weight") for layer in (2, 1, 0)] == [0.5, 0.25, 0.125]
    assert share("encoder.embeddings.pieces.weight") == 0.0625
    assert {_shares(3, 1.0)(name) for name, _ in tuned().named_parameters()} == {1.0}
    assert _shares(24, 0.9)("encoder.blocks.12.norm.weight") == pytest.approx(0.9**12)  # two digits
    assert _shares(3, 0.5)("kept.encoder.blocks.2.norm.weight") == 0.5  # a student's
    assert _shares(3, 0.5)("encoder.positions.table.weight") == 0.0625  # DeBERTa's, which all blocks read


def test_every_parameter_gets_its_share_of_the_rate(tmp_path):
    """AdamW's first step is the rate, whatever the gradient."""
    job = job_of(tmp_path / "r", layer_decay=0.5, optimizer=Optimizer(lr=1e-3, weight_decay=0.0))
    trainer = Trainer(job)
    before = {name: p.detach().clone() for name, p in job.network.named_parameters()}
    for parameter in job.network.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    trainer.optimizers.step(0.3)
    for name, parameter in job.network.named_parameters():
        moved = (before[name] - parameter).mean().item()
        assert moved == pytest.approx(0.3 * job.recipe.optimizer.lr * _shares(3, 0.5)(name), rel=1e-2)


def test_muon_s_matrices_get_their_share_too():
    network = tuned()
    optimizers = Optimizers(network, Optimizer(kind="muon"), share=_shares(3, 0.5))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    matrices = [n for n, p in network.named_parameters() if p.ndim == 2 and ".blocks.0." in n]
    moved = dict(network.named_parameters())
    for low in matrices:
        high = low.replace(".blocks.0.", ".blocks.2.")
        change_low, change_high = ((moved[n] - before[n]).norm() for n in (low, high))
        assert change_low < 0.5 * change_high, low


FROZEN = {
    0: (),
    1: ("embeddings", "blocks.0"),
    2: ("embeddings", "blocks.0", "blocks.1"),
    3: ("embeddings", "blocks"),
    -1: ("embeddings", "blocks"),
}


@pytest.mark.parametrize(("freeze", "still"), FROZEN.items())
def test_what_is_frozen_stays_as_it_was(tmp_path, freeze, still):
    job = job_of(tmp_path / "r", freeze=freeze, steps=3, optimizer=Optimizer(lr=1e-3))
    before = {name: p.detach().clone() for name, p in job.network.named_parameters()}
    fit(job)
    frozen = tuple(f"encoder.{part}." for part in still)
    for name, parameter in job.network.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith(frozen), name


def test_the_places_that_all_blocks_read_are_frozen_with_them():
    relative = source_of(CONFIG.with_(**MEMBERS["deberta-v2"], buckets=8))
    for freeze, learns in (0, True), (1, False), (-1, False):
        network = tuned(source=relative, freeze=freeze)
        assert {p.requires_grad for p in network.encoder.positions.parameters()} == {learns}


# What is taken from the model


def test_the_encoder_is_the_source_s(tmp_path):
    source = source_of()
    for name in TASKS:
        network = tuned(name, source)
        theirs = source.state_dict()
        for key, value in network.encoder.state_dict().items():
            assert torch.equal(value, theirs[f"encoder.{key}"])
        assert not network.output.bias.any()


def test_a_seed_decides_the_head():
    assert torch.equal(tuned().output.weight, tuned().output.weight)
    assert not torch.equal(tuned().output.weight, tuned(seed=1).output.weight)
    state = torch.random.get_rng_state()
    tuned()
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing else draws from another place after it


def test_a_source_without_a_pooler_gets_a_new_one():
    source = source_of(CONFIG.with_(pooler=False), next_sentence=False)
    network = tuned("classification", source)
    assert network.encoder.pooler is not None and network.encoder.pooler.dense.weight.std() > 0


def test_half_an_encoder_is_refused():
    source = source_of()
    del source.encoder.blocks[1].attention
    with pytest.raises(InputError, match=r"the model lacks encoder\.blocks\.1\..*; expected a whole encoder"):
        tuned("classification", source)


def tuned_folder(tmp_path, labels, task="classification"):
    """A model that was fine-tuned for these labels before, and its head."""
    kind = TASKS[task](TaskSettings(task=task, labels=labels, max_length=32))
    torch.manual_seed(9)
    network = build_network(CONFIG, kind)
    torch.nn.init.normal_(network.output.weight)
    save_bundle(Bundle(network, TOKENIZER, task=kind), tmp_path / "before")
    return network.output.weight.detach()


def head_after(tmp_path, labels=("even", "odd")):
    """The head after a step that moves nothing."""
    rows = [{"text": text, "label": labels[i % len(labels)]} for i, text in enumerate(SENTENCES)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = dict(train=tmp_path / "t.jsonl", dev=tmp_path / "t.jsonl")
    settings = ["steps=1", "optimizer.lr=0", "task.max_length=32"]
    finetune("classification", tmp_path / "before", tmp_path / "r", **files, settings=settings, device="cpu", quiet=True)
    return load_file(tmp_path / "r" / "model" / "model.safetensors")["classifier.weight"]


def test_a_head_for_the_same_labels_is_kept(tmp_path):
    head = tuned_folder(tmp_path, ("even", "odd"))
    assert torch.equal(head_after(tmp_path), head)


def test_a_head_for_more_labels_is_not(tmp_path):
    head, found = tuned_folder(tmp_path, ("even", "odd", "other")), head_after(tmp_path)
    assert found.shape == (2, 16) and not torch.equal(found, head[:2])


@pytest.mark.parametrize(("labels", "task"), [(("cold", "warm"), "classification"), (("odd", "even"), "classification"),
                                              (("B-X", "O"), "tagging")])  # fmt: skip
def test_a_head_for_other_labels_is_not(tmp_path, labels, task):
    head = tuned_folder(tmp_path, labels, task)
    found = head_after(tmp_path)
    assert not torch.equal(found, head)


@pytest.mark.parametrize(("asked", "found"), [(None, CONFIG.dropout), (0.0, 0.0), (0.3, 0.3)])
def test_dropout_is_the_models_own_unless_told(asked, found):
    network = tuned(dropout=asked)
    assert network.encoder.config.dropout == network.dropout.rate == network.encoder.blocks[0].dropout.rate == found
    assert network.encoder.config.attention_dropout == (CONFIG.attention_dropout if asked is None else found)


def test_top_blocks_begin_anew_and_the_others_do_not():
    source, network = source_of(), tuned(reinit=2)
    theirs = source.state_dict()
    for name, value in network.state_dict().items():
        if name.startswith("encoder.") and value.ndim == 2:
            anew = name.startswith(("encoder.blocks.1.", "encoder.blocks.2."))
            assert torch.equal(value, theirs[name]) != anew, name
            assert not anew or float(value.std()) < 0.03


def test_a_block_that_begins_anew_has_new_norms():
    for name, value in tuned(reinit=1).encoder.blocks[2].state_dict().items():
        if value.ndim == 1:
            assert torch.equal(value, torch.full_like(value, float("norm" in name and name.endswith("weight")))), name


def test_more_blocks_than_there_are_all_begin_anew_or_are_refused():
    try:
        network = tuned(reinit=4)
    except InputError:
        return
    theirs = source_of().state_dict()
    blocks = {n: v for n, v in network.state_dict().items() if n.startswith("encoder.blocks.") and v.ndim == 2}
    assert not any(torch.equal(value, theirs[name]) for name, value in blocks.items())


# Rare classes


@pytest.mark.parametrize("counts", [(8, 8), (12, 3, 1), (1, 1, 100)])
def test_classes_weigh_as_much_as_they_are_rare(counts):
    labels = tuple("abc"[: len(counts)])
    task = TASKS["classification"](TaskSettings(labels=labels))
    records = [Record("x", label=label) for label, count in zip(labels, counts, strict=True) for _ in range(count)]
    weights = _class_weights(task, records)
    total = [float(weight) * count for weight, count in zip(weights, counts, strict=True)]
    assert total == pytest.approx([sum(counts) / len(counts)] * len(counts))  # all classes together weigh the same
    assert sum(total) / sum(counts) == pytest.approx(1)  # one on average over the records


def test_a_class_that_never_occurs_has_a_weight_still():
    task = TASKS["classification"](TaskSettings(labels=("a", "b", "c")))
    weights = _class_weights(task, [Record("x", label="a")] * 4 + [Record("x", label="b")])
    assert weights.isfinite().all() and weights[1] > weights[0] > 0


def test_words_are_weighed_one_by_one():
    task = learned("tagging")
    counts = Counter(label for record in RECORDS["tagging"] for label in record.labels)
    total = sum(counts.values())
    wanted = [total / (len(counts) * counts[label]) for label in task.settings.labels]
    assert _class_weights(task, RECORDS["tagging"]).tolist() == pytest.approx(wanted)


def test_of_several_labels_a_yes_weighs_as_much_as_there_are_noes():
    task = learned("multilabel")
    flags = np.array(task.gold(RECORDS["multilabel"]))
    yes = flags.sum(0)
    assert _class_weights(task, RECORDS["multilabel"]).tolist() == pytest.approx(((16 - yes) / yes).tolist())
    uneven = [Record("x", label=("early",))] + [Record("x", label=("odd",))] * 3
    assert _class_weights(task, uneven).tolist() == pytest.approx([3, 1 / 3])


def test_weights_and_smoothing_reach_the_loss():
    assert tuned().weights.eq(1).all()
    skewed = RECORDS["classification"][:1] + RECORDS["classification"][1::2]
    task = learned("classification")
    network = tuned_network(recipe_of(task, balance=True, smoothing=0.1), task, source_of(), skewed)
    assert network.weights.tolist() == pytest.approx([9 / 2, 9 / 16]) and network.smoothing == 0.1
    assert "weights" not in network.state_dict()


@pytest.mark.parametrize("name", TASKS)
def test_tasks_with_classes_may_be_balanced(name):
    if name in ("classification", "multilabel", "tagging"):
        assert len(tuned(name, balance=True).weights) == learned(name).outputs
    else:
        with pytest.raises(InputError, match="balance=true weighs classes"):
            tuned(name, balance=True)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("similarity", {"freeze": -1}, "similarity trains the encoder itself"),
        ("similarity", {"freeze": 3}, "similarity trains the encoder itself"),
        ("qa", {"smoothing": 0.1}, "smoothing is of the one right class; qa has none"),
        ("multilabel", {"smoothing": 0.1}, "smoothing is of the one right class; multilabel has none"),
        ("tagging", {"reinit": 4}, "reinit is 4 and freeze 0; the model has 3 blocks"),
    ],
)
def test_what_a_task_cannot_do_is_refused(name, changes, message):
    with pytest.raises(InputError, match=message):
        tuned(name, **changes)


@pytest.mark.parametrize("above", [{"lstm": 8}, {"features": (-1,)}])
def test_nothing_stands_between_the_encoder_and_vectors_of_texts(above):
    task = learned("similarity", **above)
    with pytest.raises(InputError, match="similarity trains the encoder itself; features, lstm"):
        tuned_network(recipe_of(task), task, source_of(), RECORDS["similarity"])


@pytest.mark.parametrize("name", ["qa", "choice"])
def test_labels_are_for_tasks_with_classes(name):
    task = learned(name, labels=("a", "b"))
    with pytest.raises(InputError, match=f"labels are the names of classes; {name} has none"):
        tuned_network(recipe_of(task), task, source_of(), RECORDS[name])


# Steps and rates


class Fed:
    def __init__(self, steps):
        self.steps = steps


def resolved(per_epoch, config=CONFIG, **changes):
    return _resolved(recipe_of(learned("classification"), **changes), Fed(per_epoch), config)


@pytest.mark.parametrize(("per_epoch", "epochs", "wanted"), [
    (10, 3.0, 30), (10, 0.5, 5), (10, 0.01, 1), (7, 1.5, 10), (1000, 0.0, 3000), (100, 0.0, 600), (10, 0.0, 100),
])  # fmt: skip
def test_epochs_become_steps(per_epoch, epochs, wanted):
    found = resolved(per_epoch, epochs=epochs)
    assert found.steps == wanted and found.epochs > 0
    assert found.evaluate_every == min(per_epoch, 5000)
    assert 1 <= found.log_every <= max(1, wanted // 50)


def test_steps_are_an_upper_bound():
    assert resolved(100, steps=7).steps == 7
    assert resolved(2, epochs=1.0, steps=7).steps == 2
    assert resolved(100, evaluate_every=20).evaluate_every == 20


def test_the_rate_is_meant_for_a_width_of_768():
    rates = [resolved(10, CONFIG.with_(width=width, heads=1)).optimizer.lr for width in (128, 256, 512, 768, 1024)]
    assert rates[3] == pytest.approx(1e-4)
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[3] > rates[4] > 0
    assert resolved(10, CONFIG.with_(width=16, heads=1)).optimizer.lr < 0.01


def test_a_sequence_longer_than_the_positions_is_refused(tmp_path):
    with pytest.raises(InputError, match="max_length is 32; the model has 16 positions"):
        job_of(tmp_path / "r", config=CONFIG.with_(positions=16))
    assert not (tmp_path / "r").exists()


def test_the_epoch_that_is_logged_is_the_epoch(tmp_path):
    fit(job_of(tmp_path / "r", steps=2, epochs=3.0))  # of 4 steps an epoch
    assert [row["epoch"] for row in metrics(tmp_path / "r") if "epoch" in row] == [0.5]


def test_the_epoch_that_is_logged_where_all_are_trained(tmp_path):
    fit(job_of(tmp_path / "r", epochs=2.0))
    assert [row["epoch"] for row in metrics(tmp_path / "r") if "epoch" in row] == [1.0, 2.0]


# A step is a step


def first_gradient(folder, name, **changes):
    job = job_of(folder, name, batch=16, **changes)
    trainer = Trainer(job)
    step = job.feed.step(0.0, State())
    sums = trainer._gradients(step, trainer._counts(step), 0)
    gradients = {n: p.grad.clone() for n, p in trainer.network.named_parameters() if p.grad is not None}
    return len(step.rows), sums, trainer._counts(step), gradients


@pytest.mark.parametrize("name", TASKS)
def test_a_step_in_several_rows_is_the_step_in_one(name, tmp_path):
    rows, sums, counts, gradients = first_gradient(tmp_path / "a", name)
    parts, part_sums, part_counts, part_gradients = first_gradient(tmp_path / "b", name, row_tokens=60)
    assert rows == 1 and parts > 2
    assert counts == part_counts
    torch.testing.assert_close(part_sums, sums, atol=1e-4, rtol=1e-5)
    assert gradients.keys() == part_gradients.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(
            part_gradients[key], gradient, atol=1e-6, rtol=1e-3, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", ["classification", "tagging", "qa", "choice"])
def test_a_first_loss_is_the_mean_over_what_is_told(name, tmp_path):
    job = job_of(tmp_path / "r", name, batch=16, steps=1)
    network = job.network.eval()
    (row,), _ = job.feed.inputs.rows(0)
    with torch.no_grad():
        loss = float(network(row)[0]) / row.known
    fit(job)
    logged = next(value for value in metrics(tmp_path / "r") if "loss" in value)
    assert logged["loss"] == pytest.approx(loss, rel=1e-4)
    assert logged["tokens"] == row.tokens


def test_checkpointing_changes_nothing(tmp_path):
    _, sums, _, gradients = first_gradient(tmp_path / "a", "classification")
    _, other, _, others = first_gradient(tmp_path / "b", "classification", checkpointing=True)
    torch.testing.assert_close(other, sums)
    for key, gradient in gradients.items():
        torch.testing.assert_close(others[key], gradient, atol=1e-7, rtol=1e-4)


# Broken off, and on again

DROPPING = CONFIG.with_(dropout=0.1, attention_dropout=0.1)
RUN = dict(epochs=2.0, batch=4, checkpoint_every=3, row_tokens=40, config=DROPPING, optimizer=Optimizer(lr=1e-4))


def end_of(job):
    """A run to its end: the artifact, the last weights, which are not always the best, and what was measured."""
    fit(job)
    return load_file(job.run / "model" / "model.safetensors"), job.network.state_dict(), metrics(job.run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Ends of runs that nothing interrupted, by the task's name."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: end_of(job_of(folder / name, name, **RUN)) for name in ("classification", "qa")}


@pytest.mark.parametrize(("name", "failing"), [("classification", 1), ("classification", 6), ("qa", 4)])
def test_a_run_that_broke_off_ends_the_same(name, failing, whole, tmp_path, monkeypatch):
    real = fit_module.Trainer.step

    def breaking(trainer, state):
        if state.step == failing:
            raise KeyError("broke off")
        real(trainer, state)

    monkeypatch.setattr(fit_module.Trainer, "step", breaking)
    with pytest.raises(KeyError):
        fit(job_of(tmp_path / "r", name, **RUN))
    monkeypatch.undo()
    (model, last, rows), (their_model, their_last, their_rows) = end_of(job_of(tmp_path / "r", name, **RUN)), whole[name]
    assert equal(model, their_model) and equal(last, their_last)
    assert rows == their_rows


def test_a_run_that_was_stopped_goes_on_in_the_middle_of_an_epoch(tmp_path, monkeypatch):
    whole = end_of(job_of(tmp_path / "whole", dev=False, **RUN))
    monkeypatch.setattr(fit_module.Trainer, "finished", lambda trainer, state: state.step >= 2)
    fit(job_of(tmp_path / "r", dev=False, **RUN))
    monkeypatch.undo()
    assert equal(end_of(job_of(tmp_path / "r", dev=False, **RUN))[0], whole[0])


def test_frozen_and_slowed_runs_go_on_too(tmp_path, monkeypatch):
    options = RUN | dict(freeze=1, layer_decay=0.7, balance=True, smoothing=0.1, reinit=1)
    whole = end_of(job_of(tmp_path / "whole", **options))
    stopping(monkeypatch, 5)
    with pytest.raises(SystemExit):
        fit(job_of(tmp_path / "r", **options))
    monkeypatch.undo()
    assert equal(end_of(job_of(tmp_path / "r", **options))[1], whole[1])


def stopping(monkeypatch, after):
    """A signal comes with the step of that number."""
    real = fit_module.Trainer.step

    def step(trainer, state):
        real(trainer, state)
        if state.step == after:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(fit_module.Trainer, "step", step)


def test_what_is_over_keeps_its_best_model_alone(tmp_path, monkeypatch):
    """Moments and last weights are three times as much, and nobody goes on from them."""
    run = tmp_path / "r"
    ended = end_of(job_of(run, **RUN))
    monkeypatch.setattr(fit_module.Trainer, "step", None)
    job = job_of(run, **RUN)
    state = fit(job)
    assert state.step == job.recipe.steps and equal(load_file(run / "model" / "model.safetensors"), ended[0])
    (last,) = (run / "checkpoints").iterdir()
    assert load_file(last / "00000.safetensors") == {}
    with pytest.raises(TrainingError, match="is over and kept its best model alone; give another --out to train longer"):
        fit(replace(job_of(run, **RUN | dict(epochs=3.0)), fork=True))


def test_checkpoints_come_by_the_clock_unless_told(tmp_path, monkeypatch):
    written, now = [], [0.0]
    monkeypatch.setattr(fit_module, "write_checkpoint", lambda run, state, *more: written.append(state.step))
    monkeypatch.setattr(fit_module.time, "monotonic", lambda: now.append(now[-1] + 50.0) or now[-1])
    job = job_of(tmp_path / "r", **RUN | dict(checkpoint_every=0))
    fit(job)
    assert 2 < len(written) < job.recipe.steps and written[-1] == job.recipe.steps


def test_other_records_are_another_run(tmp_path):
    job = job_of(tmp_path / "r", steps=1)
    fit(job)
    assert set(job.begun) == {"train", "dev"}
    with pytest.raises(TrainingError, match="has other settings: train"):
        fit(replace(job, begun=job.begun | {"train": "other"}))


def test_the_artifact_is_the_best_on_dev(tmp_path):
    """Later evaluations that are no better leave it alone."""
    job = job_of(tmp_path / "r", epochs=3.0)
    scores, kept = iter([0.5, 0.9, 0.1]), []
    evaluate = lambda trainer, state: ({"epoch": 0.0}, next(scores))  # noqa: E731
    export = lambda to: (kept.append(to.name), job.export(to))  # noqa: E731
    state = fit(replace(job, evaluate=evaluate, export=export))
    assert state.best == 0.9 and kept == ["model", "model"] and state.stale == 1


def test_patience_ends_a_run(tmp_path):
    job = job_of(tmp_path / "r", epochs=9.0, patience=2)
    scores = iter([0.5, 0.4, 0.5, 0.9])
    state = fit(replace(job, evaluate=lambda trainer, state: ({}, next(scores))))
    assert state.step == 3 * 4


def test_without_dev_the_last_is_the_artifact(tmp_path):
    job = job_of(tmp_path / "r", dev=False, steps=2)
    assert job.evaluate is None
    fit(job)
    weights = load_file(tmp_path / "r" / "model" / "model.safetensors")
    assert torch.equal(weights["classifier.weight"], job.network.output.weight.detach())


def test_dev_figures_are_those_of_the_task(tmp_path):
    job = job_of(tmp_path / "r", "tagging", steps=1)
    fit(job)
    found = [row for row in metrics(tmp_path / "r") if "dev_entity_f1" in row]
    assert len(found) == 1
    assert {"dev_entity_precision", "dev_entity_recall", "dev_accuracy"} <= found[0].keys()


# What is tried


def tried(search, seeds=1):
    plans = _plans(recipe_of(learned("classification")), Path("run"), search, seeds, 1)
    return [(plan.recipe.optimizer.lr, plan.recipe.batch, plan.recipe.seed, plan.run.as_posix()) for plan in plans]


def test_every_point_of_a_grid_is_tried_with_every_seed():
    assert tried(None) == [(1e-4, 4, 0, "run")]
    assert tried(None, 2) == [(1e-4, 4, 0, "run/runs/000"), (1e-4, 4, 1, "run/runs/001")]
    found = tried("lr=1e-5,2e-5 batch=8", 2)
    assert [one[:3] for one in found] == [(1e-5, 8, 0), (1e-5, 8, 1), (2e-5, 8, 0), (2e-5, 8, 1)]
    assert len({one[3] for one in found}) == 4
    assert [one[2] for one in tried("seed=3,7", 2)] == [3, 4, 7, 8]


def test_a_grid_of_one_point_is_tried():
    assert tried("lr=1e-5 batch=8") == [(1e-5, 8, 0, "run")]


def test_a_threshold_may_be_set():
    assert change(Tuning(), ["task.threshold=1.5"]).task.threshold == 1.5
