"""A student comes close to its teacher, on a store and on a task, and the teacher stays what it was."""

import json
from dataclasses import replace

import pytest
import torch
from support.records import RECORDS, SENTENCES
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_store
from support.stories import stories
from typer.testing import CliRunner

import bertkit
from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.cli import app
from bertkit.data.inputs import pack_units
from bertkit.errors import DataError, InputError
from bertkit.model.config import Config
from bertkit.tasks import TASKS
from bertkit.tasks.distillation import DistilledTask, apart, divergence
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer
from bertkit.train.recipe import Optimizer, Phase

WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal even odd"] for word in text.split()})
TOKENIZER = Tokenizer.from_vocabulary([*SPECIALS, *WORDS], cased=False)
CONFIG = Config(vocabulary=len(TOKENIZER), layers=4, width=32, heads=4, feedforward=64, positions=128)


def test_nothing_is_lost_between_equals():
    logits, x = torch.randn(5, 7), torch.randn(5, 8)
    assert divergence(logits, logits).abs().max() < 1e-6
    assert divergence(logits, -logits).min() > 0
    assert apart(x, 3 * x).abs().max() < 1e-6
    torch.testing.assert_close(apart(x, -x), torch.full((5,), 2.0))
    assert not apart(x, torch.randn(5, 4)).any()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_taught(name):
    kind = TASKS[name]
    task = kind(kind.learn(TaskSettings(task=name, max_length=32), RECORDS[name]))
    teacher, student = build_network(CONFIG, task), build_network(replace(CONFIG, layers=2), task)
    network = DistilledTask(student, teacher)
    data = pack_units(task.units(RECORDS[name], TOKENIZER), task.layout)
    sums = network(data)
    assert len(sums) == len(network.names) and sums.isfinite().all()
    sums.sum().backward()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any("teacher" in key for key in network.state_dict())


@pytest.mark.parametrize("name", ["classification", "tagging", "qa", "choice"])
def test_logits_that_say_the_same_teach_nothing(name):
    """What is added to all of them changes no answer, however long the texts."""
    kind = TASKS[name]
    task = kind(kind.learn(TaskSettings(task=name, max_length=32), RECORDS[name]))
    torch.manual_seed(0)
    teacher, student = build_network(CONFIG, task).eval(), build_network(CONFIG, task).eval()
    student.load_state_dict(teacher.state_dict())
    with torch.no_grad():
        student.output.bias += 3.0
    soft_loss = DistilledTask(student, teacher)(pack_units(task.units(RECORDS[name], TOKENIZER), task.layout))[2]
    assert soft_loss.item() == pytest.approx(0.0, abs=1e-3)


BEYOND_A_TEACHER = {
    "layers=2": "students keep the model's shape",
    "width=64": "students keep the model's shape",
    "objective=spans": "expected objective=masked, pairs=none, found spans and none",
    "pairs=next": "expected objective=masked, pairs=none, found masked and next",
}


def test_a_student_learns_from_a_store(tmp_path):
    (tmp_path / "s.txt").write_text("\n\n".join(stories(400, 0)) + "\n")
    bertkit.learn_vocabulary([tmp_path / "s.txt"], 300, tmp_path / "v")
    store = bertkit.prepare([tmp_path / "s.txt"], tmp_path / "v", tmp_path / "store")
    recipe = replace(without_dropout(SMALL_RUN), steps=150, evaluate_every=150, checkpoint_every=150, log_every=10)
    recipe = replace(recipe, pairs="none", optimizer=Optimizer(lr=4e-3, beta2=0.98), phases=(Phase(length=32),))
    bertkit.pretrain(store.path, tmp_path / "t", recipe=recipe, quiet=True)
    changes = ["steps=80", "batch_tokens=1024", "row_tokens=512", "phases=32:1", "precision=fp32", "compile=false"]
    changes += ["optimizer.lr=2e-3", "log_every=10"]
    for more, said in BEYOND_A_TEACHER.items():
        with pytest.raises(InputError, match=said):
            bertkit.distill(tmp_path / "t" / "model", store.path, tmp_path / "d", settings=[*changes, more], quiet=True)
    rows = bertkit.distill(tmp_path / "t" / "model", store.path, tmp_path / "d", layers=1, settings=changes, quiet=True)
    made = load_bundle(tmp_path / "d" / "model")
    assert made.family.name == "distilbert" and made.network.encoder.config.layers == 1
    assert rows[1]["M parameters"] < rows[0]["M parameters"]
    losses = [row for row in metrics(tmp_path / "d") if "soft_loss" in row]
    assert losses[-1]["soft_loss"] < 0.8 * losses[0]["soft_loss"]
    assert losses[-1]["token_loss"] < 0.8 * losses[0]["token_loss"]


def test_a_student_of_a_roberta_counts_positions_as_its_teacher(tmp_path):
    """Behind the padding, whose id is 0 in vocabularies learned here and 1 in published ones."""
    store = made_up_store(tmp_path / "s", 40, longest=20)
    sizes = dict(positions=64, feedforward=128, dropout=0.0, attention_dropout=0.0)
    bertkit.create("tiny", store.tokenizer, family="roberta", **sizes).save(tmp_path / "t")
    changes = ["phases=48:1", "batch_tokens=256", "steps=2", "compile=false", "held_out=0.1"]
    bertkit.distill(tmp_path / "t", store.path, tmp_path / "d", layers=1, settings=changes, device="cpu", quiet=True)
    ours = bertkit.load(tmp_path / "d" / "model", device="cpu")
    assert (ours.config.first_position, ours.bundle.family.name) == (store.tokenizer.pad + 1, "roberta")


def test_a_student_learns_a_task(tmp_path):
    torch.manual_seed(0)
    save_bundle(Bundle(Pretraining(CONFIG), TOKENIZER), tmp_path / "m")
    lines = [f"{record.text},{record.label}" for record in RECORDS["classification"]]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    files = ["--train", str(tmp_path / "t.csv"), "--dev", str(tmp_path / "t.csv"), "--set", "epochs=2", "--json"]
    ran = CliRunner().invoke(
        app, ["finetune", "classification", "--model", str(tmp_path / "m"), "--out", str(tmp_path / "r"), *files]
    )
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(
        app, ["distill", str(tmp_path / "r" / "model"), "classification", "--out", str(tmp_path / "d"), *files]
    )
    assert ran.exit_code == 0, ran.output
    made = load_bundle(tmp_path / "d" / "model")
    assert made.network.encoder.config.layers == 2
    assert made.task.settings.labels == ("even", "odd")
    assert (tmp_path / "d" / "report.html").exists()
    assert {"soft_loss", "token_loss"} <= set(metrics(tmp_path / "d")[0])


SIDES = {
    "classification": ("labels=odd,even", "labels=even,odd", "text,label\n", lambda record: [record.text, record.label]),
    "similarity": (
        "labels=far,near", "labels=near,far", "text,pair,label\n",
        lambda record: [record.text, record.pair, "near" if record.label else "far"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_a_student_reads_and_tells_labels_as_its_teacher_does(name, tmp_path):
    torch.manual_seed(0)
    judge = Bundle(Pretraining(CONFIG), TOKENIZER, provenance={"source": "a test", "objective": "both"})
    save_bundle(judge, tmp_path / "m")
    order, other, head, cells = SIDES[name]
    (tmp_path / "t.csv").write_text(head + "".join(",".join(cells(record)) + "\n" for record in RECORDS[name]))
    files = dict(train=tmp_path / "t.csv", dev=tmp_path / "t.csv", device="cpu", quiet=True)
    told = ["steps=2", "max_length=24", order]
    bertkit.finetune(name, tmp_path / "m", tmp_path / "r", settings=told, **files)
    with pytest.raises(InputError, match=f"labels: .*{order[7:10]}.* is settled; .* makes it .*{other[7:10]}"):
        bertkit.distill(tmp_path / "r/model", name, tmp_path / "d", settings=["steps=2", other], **files)
    bertkit.distill(tmp_path / "r/model", name, tmp_path / "d", settings=["steps=2"], **files)
    teacher, student = (load_bundle(tmp_path / run / "model") for run in "rd")
    assert student.task.settings == teacher.task.settings
    assert json.loads((tmp_path / "d/results.json").read_text())["settings"]["layer_decay"] == 0.8


def test_a_student_of_vectors_has_as_many_numbers_as_its_teacher(tmp_path):
    torch.manual_seed(0)
    save_bundle(Bundle(Pretraining(CONFIG.with_(width=16)), TOKENIZER), tmp_path / "m")
    kind = TASKS["similarity"]
    task = kind(kind.learn(TaskSettings(task="similarity", max_length=32), RECORDS["similarity"]))
    save_bundle(Bundle(build_network(CONFIG, task), TOKENIZER, task=task), tmp_path / "t")
    lines = [f"{record.text},{record.pair},{record.label}" for record in RECORDS["similarity"]]
    (tmp_path / "t.csv").write_text("\n".join(["text,pair,label", *lines]) + "\n")
    files = dict(train=tmp_path / "t.csv", dev=tmp_path / "t.csv", student=tmp_path / "m")
    with pytest.raises(InputError, match="the student's vectors have 16 numbers, its teacher's 32"):
        bertkit.distill(tmp_path / "t", "similarity", tmp_path / "d", **files)


def test_what_a_teacher_cannot_teach_is_said(tmp_path):
    torch.manual_seed(0)
    save_bundle(Bundle(Pretraining(CONFIG), TOKENIZER), tmp_path / "m")
    kind = TASKS["classification"]
    task = kind(kind.learn(TaskSettings(max_length=32), RECORDS["classification"]))
    save_bundle(Bundle(build_network(CONFIG, task), TOKENIZER, task=task), tmp_path / "t")
    (tmp_path / "f.csv").write_text("text,label\n" + "the cat,red\nthe dog,blue\n" * 20)
    with pytest.raises(InputError, match=r"is not fine-tuned and classification not a folder; expected a store"):
        bertkit.distill(tmp_path / "m", "classification", tmp_path / "d")
    with pytest.raises(DataError, match=r"f\.csv:2: label 'red' was not seen in training; expected one of even, odd"):
        bertkit.distill(tmp_path / "t", "classification", tmp_path / "d", train=tmp_path / "f.csv", dev=tmp_path / "f.csv")
    with pytest.raises(InputError, match="was made for classification, and this is multilabel; expected the same"):
        bertkit.distill(tmp_path / "t", "multilabel", tmp_path / "d", train=tmp_path / "f.csv", dev=tmp_path / "f.csv")
    others = Tokenizer.from_vocabulary([*SPECIALS, *reversed(WORDS)], cased=False)
    save_bundle(Bundle(Pretraining(CONFIG), others), tmp_path / "o")
    files = dict(train=tmp_path / "f.csv", dev=tmp_path / "f.csv")
    with pytest.raises(InputError, match="has other pieces than its teacher"):
        bertkit.distill(tmp_path / "t", "classification", tmp_path / "d", student=tmp_path / "o", **files)
    with pytest.raises(InputError, match=r"--student names another model; expected one"):
        bertkit.distill(tmp_path / "t", "classification", tmp_path / "d", student=tmp_path / "m", layers=1, **files)
    store = made_up_store(tmp_path / "s", 50)
    with pytest.raises(InputError, match=r"has other pieces than .*; prepare it with --tokenizer"):
        bertkit.distill(tmp_path / "m", store.path, tmp_path / "d")
    assert not (tmp_path / "d").exists()
