"""Fine-tuning from files to an artifact: one's own CSV, the published sets, grids, ensembles, bad input."""

import csv
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from support.records import RECORDS, SENTENCES
from tasks.test_task import WORDS

import bertkit
from bertkit.bundle.bundle import load_bundle
from bertkit.data.readers import Columns, Table
from bertkit.data.records import Record, part
from bertkit.data.sets import SETS, find_file
from bertkit.errors import DataError, InputError, TrainingError
from bertkit.text.tokenizer import Tokenizer
from bertkit.tuning import ELECTRA_GRID, GRID, _hold_out, finetune, parse_grid

QUICK = ["steps=4", "optimizer.lr=1e-4", "task.max_length=32"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny BERT with random weights."""
    letters = [mark + letter for letter in "abcdefghijklmnopqrstuvwxyz0123456789" for mark in ("", "##")]
    words = [word for word in WORDS if len(word) > 1 or not word.isalpha()]
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters], cased=False)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    bertkit.create("tiny", tokenizer, layers=1, width=16, heads=2, feedforward=32, positions=512).save(folder)
    return folder


@pytest.fixture
def reviews(tmp_path):
    """A CSV of two columns."""
    with open(tmp_path / "reviews.csv", "w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["review", "stars"])
        for round in range(20):
            rows.writerows([f"{text} {round}", "good" if i % 2 else "bad"] for i, text in enumerate(SENTENCES))
    return tmp_path / "reviews.csv"


def tune(model, out, reviews, **options):
    columns = Columns(text="review", label="stars")
    options = {"settings": QUICK, "columns": columns, "device": "cpu", "quiet": True} | options
    return finetune("classification", model, out, train=reviews, **options)


def test_a_csv_becomes_a_model_in_one_call(model, reviews, tmp_path):
    results = tune(model, tmp_path / "r", reviews)
    assert 0 <= results["metrics"]["accuracy"] <= 1
    low, high = results["intervals"]["accuracy"]
    assert low <= results["metrics"]["accuracy"] <= high
    assert results["data"]["train"]["rows"] + results["data"]["dev"]["rows"] == 320
    assert json.loads((tmp_path / "r" / "results.json").read_text())["metrics"] == results["metrics"]
    assert "<html" in (tmp_path / "r" / "report.html").read_text()
    answer = bertkit.load(tmp_path / "r" / "model", device="cpu").classify("the cat went to the house .")
    assert answer.label in ("good", "bad")
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_rows_and_a_loaded_model_give_what_files_and_folders_give(model, reviews, tmp_path):
    with open(reviews, newline="") as stream:
        rows = list(csv.DictReader(stream))
    how = dict(columns={"text": "review", "label": "stars"}, settings=QUICK, device="cpu", quiet=True)
    given = {"file": (model, reviews), "rows": (bertkit.load(model, device="cpu"), rows)}
    for name, (start, train) in given.items():
        bertkit.finetune("classification", start, tmp_path / name, train=train, **how)
    a, b = (tmp_path / name / "model" for name in given)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    found = [bertkit.evaluate(a, data, columns=how["columns"], device="cpu") for data in (str(reviews), rows)]
    assert found[0] == found[1]


def test_what_takes_seconds_to_import_is_not_imported(model, reviews, tmp_path):
    """torch's compiler, and what cuts models over ranks."""
    code = f"""if True:
        import sys, bertkit
        how = dict(train={str(reviews)!r}, columns=dict(text="review", label="stars"), settings={QUICK!r}, quiet=True)
        bertkit.finetune("classification", {str(model)!r}, {str(tmp_path / "r")!r}, device="cpu", **how)
        print({{"torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy"}} & {{*sys.modules}})
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_same_seed_gives_the_same_weights(model, reviews, tmp_path):
    for name in "ab":
        tune(model, tmp_path / name, reviews)
    a, b = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in "ab")
    assert a == b
    tune(model, tmp_path / "c", reviews, settings=[*QUICK, "seed=1"])
    assert (tmp_path / "c" / "model" / "model.safetensors").read_bytes() != a


def test_run_again_it_takes_up_what_is_there(model, reviews, tmp_path):
    first = tune(model, tmp_path / "r", reviews)
    assert tune(model, tmp_path / "r", reviews)["metrics"] == first["metrics"]
    with pytest.raises(TrainingError, match=r"has other settings: .*batch"):
        tune(model, tmp_path / "r", reviews, settings=[*QUICK, "batch=7"])


def test_a_search_tries_all_and_keeps_the_best(model, reviews, tmp_path):
    results = tune(model, tmp_path / "r", reviews, search="lr=1e-5,1e-3 batch=16,32")
    tried = results["search"]
    assert len(tried) == 4
    assert {row["batch"] for row in tried} == {16, 32}
    assert max(row["score"] for row in tried) == pytest.approx(results["metrics"]["accuracy"])
    assert (tmp_path / "r" / "model" / "config.json").exists()
    assert {row["lr"] for row in tried} == {1e-5, 1e-3}  # as they were given, whatever the width
    tried = tune(model, tmp_path / "s", reviews, search="layer_decay=0.8,0.9")["search"]
    assert [row["layer_decay"] for row in tried] == ["0.8", "0.9"]


def test_all_that_a_search_would_try_is_checked_before_the_first_run(model, reviews, tmp_path):
    for search, message in (("max_length=16,600", "max_length is 600"), ("metrics=accuracy,pearson", "is 'pearson'")):
        with pytest.raises(InputError, match=message):
            tune(model, tmp_path / "r", reviews, search=search)
        assert not (tmp_path / "r").exists()


def test_an_ensemble_answers_together(model, reviews, tmp_path):
    results = tune(model, tmp_path / "r", reviews, ensemble=3)
    assert [row["seed"] for row in results["search"]] == [0, 1, 2]
    assert len(results["ensemble"]["members"]) == 3
    assert 0 <= results["ensemble"]["metrics"]["accuracy"] <= 1
    assert "accuracy, all models together" in (tmp_path / "r" / "report.html").read_text()


def test_settings_of_the_method(model, reviews, tmp_path):
    """Freezing, layer-wise rates, fresh top layers, class weights, smoothing, early stopping, windows: all run."""
    settings = [*QUICK, "freeze=-1", "balance=true", "smoothing=0.1", "patience=1", "stride=16"]
    tune(model, tmp_path / "frozen", reviews, settings=settings)
    from safetensors.torch import load_file

    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "frozen" / "model" / "model.safetensors")
    name = "bert.encoder.layer.0.output.dense.weight"
    assert before[name].equal(after[name])
    tune(model, tmp_path / "other", reviews, settings=[*QUICK, "layer_decay=0.5", "reinit=1"])
    other = load_file(tmp_path / "other" / "model" / "model.safetensors")
    assert not before[name].equal(other[name])


def test_bad_rows_are_left_out_and_counted_wherever_they_are(model, reviews, tmp_path):
    (tmp_path / "dev.csv").write_text("review,stars\nthe cat,good\nthe dog,awful\nthe duck,\nthe cow,bad\n")
    found = tune(model, tmp_path / "r", reviews, dev=tmp_path / "dev.csv", bad="skip")["data"]
    assert [(found[split]["rows"], found[split]["skipped"]) for split in ("train", "dev")] == [(320, 0), (2, 2)]
    columns = Columns(text="review", label="stars")
    told = bertkit.evaluate(tmp_path / "r" / "model", tmp_path / "dev.csv", columns=columns, bad="skip")
    assert (told["rows"], told["skipped"]) == (2, 2)


def test_what_cannot_be_measured_is_told(model, reviews, tmp_path):
    tune(model, tmp_path / "r", reviews)
    (tmp_path / "test.tsv").write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tthe cat\tthe dog\n")
    with pytest.raises(InputError, match=r"test\.tsv has rows without labels"):
        bertkit.evaluate(tmp_path / "r" / "model", f"glue/mrpc={tmp_path}", split="test")
    with pytest.raises(InputError, match=r"squad/v1 is a set for qa, and .* a model for classification"):
        bertkit.evaluate(tmp_path / "r" / "model", f"squad/v1={tmp_path}")
    with pytest.raises(DataError, match="name its folder: --data-dir, or glue/rte=FOLDER"):
        bertkit.evaluate(tmp_path / "r" / "model", "glue/rte")


def test_files_that_would_not_be_read_are_refused(model, reviews, tmp_path):
    for more in ({"train": reviews}, {"dev": reviews}, {"columns": Columns(text="a")}, {"columns": {"text": "a"}}):
        with pytest.raises(InputError, match=r"glue/mrpc needs --data-dir, .* and no files or columns beside it"):
            finetune("glue/mrpc", model, tmp_path / "r", data_dir=tmp_path, **more)
    with pytest.raises(InputError, match="no --data-dir, which is for named sets"):
        tune(model, tmp_path / "r", reviews, data_dir=tmp_path)


def test_another_task_first(model, reviews, tmp_path):
    """Intermediate training: a fine-tuned artifact as the model to begin from."""
    tune(model, tmp_path / "first", reviews)
    results = tune(tmp_path / "first" / "model", tmp_path / "second", reviews)
    assert results["model"].endswith("model")


def test_who_judged_pieces_is_tuned_as_electra_was_unless_told(model, reviews, tmp_path):
    judge = load_bundle(model)
    judge.provenance = {"source": "a test", "objective": "replaced"}
    judge.save(tmp_path / "judge")
    quick = dict(settings=["steps=1", "task.max_length=32"])
    plain, judged = (tune(one, tmp_path / f"{i}", reviews, **quick)["settings"] for i, one in enumerate((model, judge)))
    assert (plain["layer_decay"], judged["layer_decay"]) == (1.0, 0.8)
    assert judged["optimizer"]["lr"] / plain["optimizer"]["lr"] == pytest.approx(1e-4 / 3e-5)
    again = tune(tmp_path / "1/model", tmp_path / "again", reviews, settings=[*quick["settings"], "lr=3e-5"])["settings"]
    assert again["layer_decay"] == 0.8 and again["optimizer"]["lr"] == plain["optimizer"]["lr"]
    for source, rate in (model, 3e-5), (tmp_path / "judge", 1e-4):
        tried = tune(source, tmp_path / f"grid {rate}", reviews, search="paper", **quick)["search"]
        assert len(tried) == 18 and rate in {row["lr"] for row in tried}


def test_evaluation_of_a_file(model, reviews, tmp_path):
    tune(model, tmp_path / "r", reviews)
    found = bertkit.evaluate(tmp_path / "r" / "model", reviews, columns=Columns(text="review", label="stars"))
    assert set(found["metrics"]) == {"accuracy"}
    with pytest.raises(InputError, match="is not fine-tuned"):
        bertkit.evaluate(model, reviews)


def test_wrong_columns_and_unknown_tasks_are_named(model, reviews, tmp_path):
    with pytest.raises(DataError, match="review, stars"):
        tune(model, tmp_path / "r", reviews, columns=Columns(text="reveiw", label="stars"))
    with pytest.raises(InputError, match='did you mean "classification"'):
        finetune("clasification", model, tmp_path / "r")
    with pytest.raises(InputError, match="glue/mrpc needs --data-dir"):
        finetune("glue/mrpc", model, tmp_path / "r")
    with pytest.raises(InputError, match="max_length is 1000; the model has 512 positions"):
        tune(model, tmp_path / "r", reviews, settings=["max_length=1000"])
    assert not (tmp_path / "r").exists()


def test_labels_unseen_in_training_are_named(model, reviews, tmp_path):
    (tmp_path / "dev.csv").write_text("review,stars\nthe cat,good\nthe dog,awful\n")
    with pytest.raises(DataError, match=r"dev.csv:3: .*awful"):
        tune(model, tmp_path / "r", reviews, dev=tmp_path / "dev.csv")
    (tmp_path / "all.csv").write_text(reviews.read_text() + "the dog,awful\nthe cat,awful\n")
    with pytest.raises(DataError, match=r"all.csv:322: label 'awful' was not seen in training"):
        tune(model, tmp_path / "r", tmp_path / "all.csv", dev=reviews, settings=[*QUICK, "labels=good,bad", "balance=true"])
    assert not (tmp_path / "r").exists()


def test_grids_as_text():
    assert len(parse_grid(GRID)) == len(parse_grid(ELECTRA_GRID)) == 3
    assert parse_grid("lr=1e-5,2e-5 seed=1") == {"lr": ["1e-5", "2e-5"], "seed": ["1"]}
    with pytest.raises(InputError, match="expected"):
        parse_grid("lr")


@pytest.mark.parametrize("task", ["multilabel", "regression", "tagging", "qa", "choice", "similarity"])
def test_every_task_from_a_jsonl_file(task, model, tmp_path):
    fields = {"tagging": "words labels", "qa": "question context", "choice": "prompt options label"}
    rows = [{f: getattr(record, f) for f in fields.get(task, "text pair label").split()} for record in RECORDS[task]]
    if task == "qa":
        rows = [row | {"answers": [a for a, _ in record.answers]} for row, record in zip(rows, RECORDS[task], strict=True)]
    if task == "multilabel":
        rows = [{"text": row["text"], "label": row["label"]} for row in rows]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = finetune(
        task, model, tmp_path / "r", train=file, dev=file, settings=["steps=2", "max_length=32"], device="cpu", quiet=True
    )
    assert results["headline"] in results["metrics"]
    assert (tmp_path / "r" / "report.html").exists()


DATA = os.environ.get("BERTKIT_DATA")


@pytest.mark.skipif(not DATA, reason="BERTKIT_DATA names no folder with the published sets")
@pytest.mark.parametrize("name", [name for name in SETS if name not in ("glue/mnli", "glue/ax", "xnli", "swag")])
def test_two_steps_on_every_published_set(name, model, tmp_path, monkeypatch):
    """Two steps on the whole training set; of dev, the first records."""
    from bertkit import tuning as story

    real = story.read_set

    def shortened(*arguments, **options):
        table = real(*arguments, **options)
        table.records = table.records[:2000] if arguments[2] == "train" else table.records[:100]
        return table

    monkeypatch.setattr(story, "read_set", shortened)
    assert find_file(name, Path(DATA) / "tasks", "dev")
    settings = ["steps=2", "max_length=128"]
    results = finetune(
        name, model, tmp_path / "r", data_dir=Path(DATA) / "tasks", settings=settings, device="cpu", quiet=True
    )
    assert results["headline"] in results["metrics"]


def test_one_run_and_several_do_not_share_a_folder(model, reviews, tmp_path):
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "notes.txt").write_text("precious")
    with pytest.raises(TrainingError, match="is not empty and holds no search"):
        tune(model, tmp_path / "mine", reviews, restarts=2)
    assert (tmp_path / "mine" / "model" / "notes.txt").read_text() == "precious"
    tune(model, tmp_path / "several", reviews, restarts=2)
    with pytest.raises(TrainingError, match="holds several runs"):
        tune(model, tmp_path / "several", reviews)


@pytest.mark.parametrize("options", [{"restarts": 0}, {"ensemble": 0}, {"settings": [*QUICK, "task=qa"]}])
def test_senseless_plans_are_refused(options, model, reviews, tmp_path):
    with pytest.raises(InputError, match=r"expected 1 at least|task: classification is settled; .* makes it qa"):
        tune(model, tmp_path / "r", reviews, **options)
    assert not (tmp_path / "r").exists()


def test_a_label_that_only_a_held_out_record_has_is_learned():
    drawn = (Record(f"rare {number}", label="rare") for number in count())
    rare = next(record for record in drawn if part(record, 10) == 0)
    table = Table(Path("f.csv"), "classification", records=[Record(f"text {n}", label="a") for n in range(50)] + [rare])
    held = _hold_out(table)
    assert held and rare not in held and rare in table.records
    assert len(held) + len(table.records) == 51


def test_a_label_of_two_records_keeps_both():
    drawn = [Record(f"rare {number}", label="rare") for number in range(200)]
    rare = [next(record for record in drawn if (part(record, 10) == 0) == out) for out in (True, False)]
    table = Table(Path("f.csv"), "classification", records=[Record(f"text {n}", label="a") for n in range(50)] + rare)
    assert not set(_hold_out(table)) & set(rare)


def test_a_label_of_dev_that_nobody_learned_is_told_before_training(model, reviews, tmp_path):
    reviews_of = "text,label\n" + "the cat,a|b\nthe dog,b\n" * 5
    (tmp_path / "t.csv").write_text(reviews_of)
    (tmp_path / "d.csv").write_text("text,label\nthe cat,z\n")
    with pytest.raises(DataError, match=r"d\.csv:2.*'z' was not seen in training"):
        finetune("multilabel", model, tmp_path / "r", train=tmp_path / "t.csv", dev=tmp_path / "d.csv", device="cpu")
    assert not (tmp_path / "r").exists()
