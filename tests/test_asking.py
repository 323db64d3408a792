"""The verbs that ask a fine-tuned model, as a user types them: for people and as JSON."""

import json

import pytest
import torch
from support.records import RECORDS
from tasks.test_task import WORDS
from typer.testing import CliRunner

from bertkit.bundle.bundle import Bundle, save_bundle
from bertkit.cli import app
from bertkit.model.config import Config
from bertkit.tasks import TASKS
from bertkit.tasks.classification import Labelled
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import Tokenizer

TEXT = "the cat went to the house ."
ASKED = {
    "classification": ["classify", TEXT],
    "multilabel": ["classify", TEXT],
    "regression": ["classify", TEXT, "--pair", "the dog ."],
    "tagging": ["tag", TEXT],
    "qa": ["ask", "where did it go ?", TEXT],
    "choice": ["choose", "the animal went to", "the house", "it"],
    "similarity": ["embed", TEXT],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small model of every task with random weights."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], cased=False)
    config = Config(vocabulary=len(tokenizer), layers=1, width=16, heads=2, feedforward=32, positions=64)
    torch.manual_seed(0)
    for name, kind in TASKS.items():
        task = kind(kind.learn(TaskSettings(task=name, max_length=32), RECORDS[name]))
        save_bundle(Bundle(build_network(config, task), tokenizer, task=task), folder / name)
    return folder


def asked(words, model):
    done = CliRunner().invoke(app, [*words, "--model", str(model), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_asked_by_its_verb(name, models):
    assert asked(ASKED[name], models / name).strip()
    json.loads(asked([*ASKED[name], "--json"], models / name))


def test_entities_have_their_characters(models):
    (answer,) = json.loads(asked(["tag", TEXT, "--json"], models / "tagging"))
    for entity in answer["entities"]:
        assert TEXT[entity["begin"] : entity["end"]] == entity["text"]


def test_an_answer_is_a_part_of_the_context(models):
    answer = json.loads(asked(["ask", "who ?", TEXT, "--json"], models / "qa"))
    assert all(TEXT[span["begin"] : span["end"]] == span["text"] for span in answer["best"])


def test_no_label_is_an_answer_too(models, monkeypatch):
    answer = Labelled((), {"early": 0.1, "odd": 0.2})
    monkeypatch.setattr("bertkit.serve.predictor.Model.classify", lambda *_: [answer])
    assert asked(["classify", TEXT], models / "multilabel").startswith("none")
