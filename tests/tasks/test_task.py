"""The contract that every task keeps: it learns sixteen records by heart, and is the same after saving and loading."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from support.records import RECORDS, SENTENCES

import bertkit
from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.data import readers
from bertkit.data.inputs import pack_units
from bertkit.data.records import Record
from bertkit.errors import ArtifactError, DataError, InputError
from bertkit.model.config import Config
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
WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal even odd"] for word in text.split()})


@pytest.fixture(scope="session")
def tokenizer():
    letters = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    return Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters], cased=False)


@pytest.fixture
def config(tokenizer):
    sizes = dict(layers=2, width=32, heads=4, feedforward=64, positions=64, dropout=0.0, attention_dropout=0.0)
    return Config(vocabulary=len(tokenizer), **sizes)


def learned(name, **changes):
    settings = TASKS[name].learn(TaskSettings(task=name, max_length=32, **changes), RECORDS[name])
    return TASKS[name](settings)


def answers(network, task, tokenizer, records=None):
    records = RECORDS[task.settings.task] if records is None else records
    return list(answer_records([network.eval()], task, tokenizer, records, CPU))


FEATURES = {"": {}, "-features": {"features": (-1, -2), "lstm": 16}, "-weighted": {"features": (0, -1), "mix": "weighted"}}
LEARNED = [*TASKS, "tagging-features", "classification-features", "tagging-weighted"]


@pytest.mark.parametrize("name", LEARNED)
def test_learns_sixteen_records_by_heart(name, tokenizer, config, tmp_path):
    name, dash, kind = name.partition("-")
    task, records = learned(name, **FEATURES[dash + kind]), RECORDS[name]
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
        assert torch.equal(encoder.embeddings.word_embeddings.weight, source.encoder.embeddings.pieces.weight)


@pytest.mark.parametrize("name", TASKS)
def test_saved_and_loaded_it_answers_the_same(name, tokenizer, config, tmp_path):
    task = learned(name)
    network = build_network(config, task)
    before = answers(network, task, tokenizer)
    save_bundle(Bundle(network, tokenizer, task=task), tmp_path / "m")
    found = load_bundle(tmp_path / "m")
    assert found.task.settings == task.settings
    assert repr(answers(found.network, found.task, tokenizer)) == repr(before)


@pytest.mark.parametrize("name", TASKS)
def test_company_and_order_do_not_matter(name, tokenizer, config):
    task, records = learned(name), RECORDS[name]
    network = build_network(config, task)
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


CLASSES = {
    "classification": transformers.BertForSequenceClassification,
    "multilabel": transformers.BertForSequenceClassification,
    "regression": transformers.BertForSequenceClassification,
    "tagging": transformers.BertForTokenClassification,
    "qa": transformers.BertForQuestionAnswering,
    "choice": transformers.BertForMultipleChoice,
}


@pytest.mark.parametrize("name", CLASSES)
def test_transformers_reads_it_and_agrees(name, tokenizer, config, tmp_path):
    """Our folder in their class: nothing missing or left over, and the same logits and loss."""
    task = learned(name)
    network = build_network(config, task).eval()
    save_bundle(Bundle(network, tokenizer, task=task), tmp_path / "m")
    theirs, info = CLASSES[name].from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.eval()
    for unit in task.units(RECORDS[name][:5], tokenizer):
        data = pack_units([unit], task.layout)
        ours = network.logits(data)
        longest = max(map(len, unit))
        grid = torch.zeros(3, len(unit), longest, dtype=torch.long)
        for row, one in enumerate(unit):
            grid[0, row, : len(one)], grid[1, row, : len(one)] = torch.from_numpy(one.ids), torch.from_numpy(one.segments)
            grid[2, row, : len(one)] = 1
        grid = grid[:, None] if name == "choice" else grid
        found = theirs(input_ids=grid[0], token_type_ids=grid[1], attention_mask=grid[2])
        if name == "qa":
            logits = torch.stack([found.start_logits, found.end_logits], -1)[0]
        elif name == "tagging":
            logits = found.logits[0][data.places]
        else:
            logits = found.logits.T if name == "choice" else found.logits
        torch.testing.assert_close(ours, logits, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", CLASSES)
def test_their_fine_tuned_folders_are_read(name, tokenizer, config, tmp_path):
    task = learned(name)
    save_bundle(Bundle(build_network(config, task), tokenizer, task=task), tmp_path / "m")
    theirs = CLASSES[name].from_pretrained(tmp_path / "m")
    theirs.save_pretrained(tmp_path / "t")
    (tmp_path / "t" / "vocab.txt").write_text("\n".join(tokenizer.vocabulary) + "\n")
    found = load_bundle(tmp_path / "t")
    assert found.task.settings.task == name
    assert found.task.settings.labels == task.settings.labels
    for one, other in zip(found.network.parameters(), load_bundle(tmp_path / "m").network.parameters(), strict=True):
        assert torch.equal(one, other)


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
