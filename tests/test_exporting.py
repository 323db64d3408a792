"""An export is checked before it is there."""

import json
import subprocess
import sys
from unittest import mock

import pytest
from support.exports import bundle_of
from support.records import RECORDS

import bertkit
from bertkit import exporting
from bertkit.bundle.bundle import load_bundle, save_bundle
from bertkit.errors import ArtifactError, InputError
from bertkit.tasks.task import TaskSettings


@pytest.fixture
def model(tmp_path):
    save_bundle(bundle_of("bert", "classification"), tmp_path / "model")
    rows = [f"{record.text},{record.label}" for record in RECORDS["classification"]]
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return tmp_path / "model"


def run(*words):
    return subprocess.run([sys.executable, "-m", "bertkit", *map(str, words)], capture_output=True, text=True)


def test_the_verb_writes_a_folder_and_tells_the_figures(model, tmp_path):
    done = run("export", model, "--int8", "--sample", tmp_path / "dev.csv", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["compared"] == "accuracy on 16 records"
    assert facts["after"] >= facts["before"] - exporting.POINTS
    assert bertkit.load(tmp_path / "out").describe()["parameters"] == bertkit.load(model).describe()["parameters"]
    with pytest.raises(ArtifactError, match="was exported already; expected the model it was made of"):
        bertkit.export(tmp_path / "out", tmp_path / "again")
    with pytest.raises(ArtifactError, match="was exported, which is for answers alone"):
        load_bundle(tmp_path / "out")


def test_in_python_without_a_sample(model, tmp_path):
    facts = bertkit.export(model, tmp_path / "out")
    assert facts["largest difference"] < 1e-5
    assert facts["compared"] == "vectors of drawn pieces"
    bertkit.export(model, tmp_path / "out", int8=True)  # takes the place of its like
    with pytest.raises(ArtifactError, match=r"exists and is not a folder with model\.onnx"):
        bertkit.export(model, model)
    with pytest.raises(InputError, match="to is 'tflite'; expected one of onnx"):
        bertkit.export(model, tmp_path / "lite", to="tflite")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"])
def test_weights_beside_a_graph_stay(weights, model, tmp_path):
    bertkit.export(model, tmp_path / "out")
    (tmp_path / "out" / weights).write_text("mine")
    with pytest.raises(ArtifactError, match=r"out holds a model\.onnx, but more than bertkit exported; give another place"):
        bertkit.export(model, tmp_path / "out")
    assert (tmp_path / "out" / weights).read_text() == "mine"


def test_what_others_exported_is_not_replaced(model, tmp_path):
    bertkit.export(model, tmp_path / "out")
    (tmp_path / "out" / "bertkit.json").unlink()
    with pytest.raises(ArtifactError, match="give another place"):
        bertkit.export(model, tmp_path / "out")


def test_half_a_point_may_be_lost(tmp_path):
    class Fake:
        headline = "accuracy"
        settings = TaskSettings(task="classification")

        def score(self, records, answers):
            return {"accuracy": answers}

    before, after = mock.Mock(**{"answer.return_value": 0.905}), mock.Mock(**{"answer.return_value": 0.9})
    assert exporting._scores(Fake(), before, after, mock.MagicMock())["after"] == 0.9
    after.answer.return_value = 0.8999
    with pytest.raises(ArtifactError, match="too much was lost"):
        exporting._scores(Fake(), before, after, mock.MagicMock())


def test_vectors_are_compared_on_texts(tmp_path):
    save_bundle(bundle_of("bert"), tmp_path / "m")
    (tmp_path / "texts.csv").write_text("text\nthe cat\nthe dog went to the river .\n")
    facts = bertkit.export(tmp_path / "m", tmp_path / "out", int8=True, sample=tmp_path / "texts.csv")
    assert facts["compared"] == "vectors of 2 texts"
    (tmp_path / "holes.csv").write_text('text\nthe cat\n""\n')
    facts = bertkit.export(tmp_path / "m", tmp_path / "out", int8=True, sample=tmp_path / "holes.csv", bad="skip")
    assert facts["compared"] == "vectors of 1 texts"
    assert 0.98 < facts["cosine"] < 1


@pytest.mark.parametrize(
    ("bound", "value", "options", "message"),
    [
        ("EXACT", 0.0, {}, r"the graph is off by .*; expected 0e\+00 at most"),
        ("COSINE", 1.1, {"int8": True}, "vectors of drawn pieces have a cosine of .*; expected 1.1: export without int8"),
        ("POINTS", -1.0, {"int8": True, "sample": "dev.csv"}, "too much was lost, accuracy on 16 records: before .*, after"),
    ],
)
def test_what_is_not_the_same_is_not_written(bound, value, options, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exporting, bound, value)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match=message):
        bertkit.export(model, tmp_path / "out", **options)
    assert sorted(tmp_path.iterdir()) == before
