"""The contract that every task keeps: it learns sixteen records by heart, and is the same after saving and loading."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from support.family import small
from support.records import RECORDS, SENTENCES

import bertkit
from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.bundle.members import BERT, FAMILIES
from bertkit.data import readers
from bertkit.data.inputs import pack_units
from bertkit.data.records import Record
from bertkit.errors import ArtifactError, DataError, InputError
from bertkit.model.config import MEMBERS, Config
from bertkit.model.device import find_device
from bertkit.tasks import TASKS
from bertkit.tasks.answering import answer_records
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.finetuning import tuned_network, tuning_job
from bertkit.train.fit import fit
from bertkit.train.recipe import Optimizer, Schedule, Tuning

CPU = find_device("cpu")
KINDS = [*((member, {}) for member in FAMILIES), ("modernbert", {"summary_of": "mean"})]
WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal even odd"] for word in text.split()})


@pytest.fixture(scope="session")
def tokenizer():
    letters = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    return Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters], cased=False)


@pytest.fixture
def config(tokenizer):
    sizes = dict(layers=2, width=32, heads=4, feedforward=64, positions=64, dropout=0.0, attention_dropout=0.0)
    return Config(vocabulary=len(tokenizer), **sizes)


def bundle_of(member, tokenizer, task, **changes):
    """A member of the family with new weights, none of them as it began."""
    torch.manual_seed(3)
    network = build_network(small(member, vocabulary=len(tokenizer), **changes), task).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Bundle(network, tokenizer, FAMILIES[member], task=task)


def learned(name, **changes):
    settings = TASKS[name].learn(TaskSettings(task=name, max_length=32, **changes), RECORDS[name])
    return TASKS[name](settings)


def answers(network, task, tokenizer, records=None):
    records = RECORDS[task.settings.task] if records is None else records
    return list(answer_records([network.eval()], task, tokenizer, records, CPU))


FEATURES = {
    "": {},
    "-lstm": {"lstm": 16},
    "-features": {"features": (-1, -2), "lstm": 16},
    "-weighted": {"features": (0, -1), "mix": "weighted"},
}
LEARNED = [*TASKS, "tagging-lstm", "tagging-features", "classification-features", "tagging-weighted"]


@pytest.mark.parametrize("name", LEARNED)
def test_learns_sixteen_records_by_heart(name, tokenizer, config, tmp_path):
    name, dash, kind = name.partition("-")
    task, records = learned(name, **FEATURES[dash + kind]), RECORDS[name]
    config = config.with_(causal=kind == "lstm")  # the paper's baseline: left to right, and a BiLSTM on top
    recipe = Tuning(
        task=task.settings,
        optimizer=Optimizer(lr=2e-3 * 32 / 768),
        epochs=250.0,
        batch=16,
        schedule=Schedule(kind="constant", warmup=0.05),
        precision="fp32",
        compile=False,
        row_tokens=96,
    )
    torch.manual_seed(0)
    source = build_network(config, task)
    network = tuned_network(recipe, task, source, records)
    bundle = Bundle(network, tokenizer, task=task)
    job = tuning_job(
        tmp_path / "r", recipe, task, network, tokenizer, records, records, CPU, lambda to: save_bundle(bundle, to)
    )
    fit(replace(job, quiet=True))
    found = load_bundle(tmp_path / "r" / "model")
    score = task.score(records, answers(found.network, found.task, tokenizer))[task.headline]
    assert score > 0.95
    if kind:
        assert (tmp_path / "r" / "model" / "head.safetensors").exists()
        assert not (tmp_path / "r" / "features.bin").exists()
        encoder = transformers.BertModel.from_pretrained(tmp_path / "r" / "model", add_pooling_layer=False)
        same = torch.equal(encoder.embeddings.word_embeddings.weight, source.encoder.embeddings.pieces.weight)
        assert same == (kind != "lstm")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("member", FAMILIES)
def test_saved_and_loaded_it_answers_the_same(member, name, tokenizer, tmp_path):
    task = learned(name)
    bundle = bundle_of(member, tokenizer, task)
    before = answers(bundle.network, task, tokenizer)
    save_bundle(bundle, tmp_path / "m")
    found = load_bundle(tmp_path / "m")
    assert found.network.encoder.config == bundle.network.encoder.config
    assert found.task.settings == task.settings
    assert repr(answers(found.network, found.task, tokenizer)) == repr(before)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("member", "changes"), KINDS)
def test_company_and_order_do_not_matter(member, changes, name, tokenizer):
    task, records = learned(name), RECORDS[name]
    network = bundle_of(member, tokenizer, task, **changes).network
    together = answers(network, task, tokenizer)
    alone = [answers(network, task, tokenizer, [record])[0] for record in records]
    flat = [np.hstack([np.ravel(v) for v in _numbers(answer)]) for answer in (*together, *alone)]
    for one, other in zip(flat[: len(records)], flat[len(records) :], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def _numbers(answer):
    """All numbers in an answer."""
    if isinstance(answer, (int, float)):
        return [float(answer)]
    if isinstance(answer, dict):
        answer = list(answer.values())
    return [number for part in answer for number in _numbers(part)] if isinstance(answer, (list, tuple)) else [0.0]


@pytest.mark.parametrize("name", BERT.heads)
@pytest.mark.parametrize(("member", "changes"), KINDS)
def test_transformers_reads_it_and_agrees(member, changes, name, tokenizer, tmp_path):
    """Our folder in their class: nothing missing or left over, and the same logits; their folder here: the same weights."""
    task = learned(name)
    bundle = bundle_of(member, tokenizer, task, **changes)
    save_bundle(bundle, tmp_path / "m")
    kind = getattr(transformers, FAMILIES[member].heads[name].name)
    theirs, info = kind.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for unit in task.units(RECORDS[name][:5], tokenizer):
        data = pack_units([unit], task.layout)
        found = theirs.eval()(**as_grid(unit, member, name))
        torch.testing.assert_close(bundle.network.logits(data), logits_of(found, name, data), atol=2e-5, rtol=0)
    theirs.save_pretrained(tmp_path / "t")
    (tmp_path / "t" / "vocab.txt").write_text("\n".join(tokenizer.vocabulary) + "\n")
    back = load_bundle(tmp_path / "t")
    assert (back.task.settings.task, back.task.settings.labels) == (name, task.settings.labels)
    assert back.network.encoder.config == bundle.network.encoder.config
    for one, other in zip(back.network.parameters(), bundle.network.parameters(), strict=True):
        assert torch.equal(one, other)


def as_grid(unit, member, name):
    """The inputs of a unit as transformers takes them."""
    grid = torch.zeros(3, len(unit), max(map(len, unit)), dtype=torch.long)
    grid[0] = MEMBERS[member].get("first_position", 1) - 1  # what pads
    for row, one in enumerate(unit):
        grid[0, row, : len(one)], grid[1, row, : len(one)] = torch.from_numpy(one.ids), torch.from_numpy(one.segments)
        grid[2, row, : len(one)] = 1
    grid = grid[:, None] if name == "choice" else grid
    told = {"input_ids": grid[0], "attention_mask": grid[2]}
    if member == "longformer" and name in ("qa", "choice"):  # they look for three separators; ours has two
        chosen = grid[1] == 0 if name == "qa" else grid[1] == 1
        last = (grid[0] == 3).int().argmax(-1) if name == "qa" else None
        if last is not None:
            chosen = chosen & (torch.arange(chosen.shape[-1]) < last[..., None])
        else:
            chosen = chosen & torch.roll(chosen, 1, -1)
        told["global_attention_mask"] = chosen.long()
    return told | ({"token_type_ids": grid[1]} if small(member).segments > 1 else {})


def logits_of(found, name, data):
    if name == "qa":
        return torch.stack([found.start_logits, found.end_logits], -1)[0]
    if name == "tagging":
        return found.logits[0][data.places]
    return found.logits.T if name == "choice" else found.logits


def test_an_unseen_label_is_named_with_its_place(tokenizer):
    task = learned("classification")
    with pytest.raises(DataError, match=r"f:7.*'none' was not seen in training; expected one of even, odd"):
        task.units([Record("the cat", label="none", place="f:7")], tokenizer)


def test_empty_texts_are_refused(tokenizer):
    with pytest.raises(InputError, match="text 2 is empty"):
        learned("classification").units([Record("the cat"), Record(" ")], tokenizer)


def test_one_label_is_no_task():
    with pytest.raises(InputError, match="expected at least two"):
        TASKS["classification"].learn(TaskSettings(), [Record("a", label="x"), Record("b", label="x")])


def test_long_texts_are_read_in_windows(tokenizer, config):
    task = learned("classification", stride=8)
    long = Record(" ".join(SENTENCES), label="odd")
    windows = task.units([long], tokenizer)[0]
    assert len(windows) > 3
    assert all(len(window) <= 32 for window in windows)
    seen = np.concatenate([window.ids[1:-1] for window in windows])
    assert set(seen) == set(tokenizer.pieces([long.text])[0].ids)
    assert len(answers(build_network(config, task), task, tokenizer, [long])) == 1


def test_the_artifact_keeps_what_the_task_must_remember(tokenizer, config, tmp_path):
    task = TASKS["qa"](replace(learned("qa").settings, threshold=1.5, temperature=0.7))
    save_bundle(Bundle(build_network(config, task), tokenizer, task=task), tmp_path / "m")
    told = json.loads((tmp_path / "m" / "bertkit.json").read_text())["task"]
    assert told["threshold"] == 1.5
    assert load_bundle(tmp_path / "m").task.settings.temperature == 0.7


def test_a_model_says_what_it_cannot_do(tokenizer, config, tmp_path):
    task = learned("tagging")
    save_bundle(Bundle(build_network(config, task), tokenizer, task=task), tmp_path / "m")
    model = bertkit.load(tmp_path / "m", device="cpu")
    assert model.answers() == ["embed", "features", "tag"]
    with pytest.raises(ArtifactError, match="this model is a tagging model; expected one fine-tuned for qa"):
        model.ask("who ?", "the cat")


def test_the_readers_know_the_same_tasks():
    assert set(readers.TASKS) == set(TASKS)


def test_numbers_far_from_nought_are_learned_from_their_mean(tokenizer):
    records = [Record("the cat", label=250_000.0), Record("the dog", label=150_000.0)]
    task = TASKS["regression"](TASKS["regression"].learn(TaskSettings(task="regression"), records))
    targets = [unit[0].targets for unit in task.units(records, tokenizer)]
    np.testing.assert_allclose(np.ravel(targets), [1, -1], atol=1e-6)
    assert [task.answer(np.array([target])) for target in (1.0, -1.0)] == [250_000, 150_000]


def scaled(*numbers, **changes):
    """The center and the scale that a regression learns of numbers."""
    records = [Record("the cat", label=number) for number in numbers]
    found = TASKS["regression"].learn(TaskSettings(task="regression", **changes), records)
    return found.center, found.scale


def test_numbers_are_left_alone_where_a_head_reaches_them_and_sees_them_apart():
    assert scaled(0.0, 2.0, 5.0) == scaled(0.0, 0.3, 0.7, 1.0) == scaled(1.0, 5.0, 5.0, 4.0) == (0, 1)
    assert scaled(0.990, 0.993) == pytest.approx((0.9915, 0.0015))
    assert scaled(9.0, 9.9) == pytest.approx((9.45, 0.45))
    assert scaled(5.0, 5.0) == (5, 1)


def test_a_center_and_a_scale_that_were_named_stay():
    assert scaled(0.0, 1000.0, center=5.0, scale=10.0) == (5, 10)
    assert scaled(0.990, 0.993, scale=0.01) == (0, 0.01)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("classification", ("f1", "macro_f1"), "multilabel_f1"),
        ("multilabel", ("multilabel_macro_f1",), "macro_f1"),
        ("regression", ("pearson",), "accuracy"),
        ("tagging", ("entity_f1",), "accuracy"),
        ("qa", ("exact",), "accuracy"),
        ("choice", ("accuracy",), "f1"),
        ("similarity", ("pearson",), "accuracy"),
    ],
)
def test_only_what_fits_the_answers_is_measured(name, good, bad):
    learned(name, metrics=good).check_metrics()
    assert learned(name, metrics=good).headline == good[0]
    with pytest.raises(InputError, match=f"a metric of {name} is '{bad}'.*expected one of"):
        learned(name, metrics=(bad,)).check_metrics()


def test_f1_is_of_two_classes():
    with pytest.raises(InputError, match=r"a metric of classification is 'f1'.*expected one of accuracy, macro_f1"):
        TASKS["classification"](TaskSettings(labels=("a", "b", "c"), metrics=("f1",))).check_metrics()
