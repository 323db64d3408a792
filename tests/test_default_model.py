"""The model that lies in the package: small, offline, asked unless told otherwise, and any transformers user's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bertkit
from bertkit import demo
from bertkit.cli import app
from bertkit.models import DEFAULT, OWN

ROOT = Path(__file__).parents[1]
FILLED = {  # what it knows; README.md beside it tells what it does not
    "The capital of France is [MASK].": "paris",
    "He was born in [MASK] York City.": "new",
    "The [MASK] of the United States lives in the White House.": "president",
    "She went to the library to read a [MASK].": "book",
    "Shakespeare wrote many [MASK].": "plays",
    "The children went to [MASK] by bus.": "school",
}


@pytest.fixture(scope="module")
def small():
    return bertkit.load(device="cpu")


def test_it_is_small(small):
    assert small.runner.parameters()["total"] <= 15_000_000
    assert sum(file.stat().st_size for file in (OWN / DEFAULT).iterdir()) <= 30_000_000


@pytest.mark.parametrize("text", FILLED)
def test_it_fills_in(small, text):
    assert small.fill(text, top=1)[0][0].piece == FILLED[text]


def test_every_verb_that_asks_takes_it_unless_told():
    told = CliRunner().invoke(app, ["fill", next(iter(FILLED)), "--device", "cpu", "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)[0]["masks"][0][0]["piece"] == "paris"
    told = CliRunner().invoke(app, ["embed", "One.", "Two.", "--device", "cpu", "--json"], catch_exceptions=False)
    assert np.shape(json.loads(told.stdout)["vectors"]) == (2, 256)


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    model.save(DEFAULT)
    assert bertkit.load(DEFAULT, device="cpu").config == model.config


def test_a_server_without_a_name_serves_it(monkeypatch):
    http = pytest.importorskip("bertkit.serve.http", reason="needs the extra serve")
    served = []
    monkeypatch.setattr(http, "run", lambda *given: None)
    monkeypatch.setattr(http, "create_app", lambda models, **told: served.extend(models))
    CliRunner().invoke(app, ["serve", "--device", "cpu"], catch_exceptions=False)
    assert served == [DEFAULT]


def test_transformers_reads_it(small):
    transformers = pytest.importorskip("transformers", reason="needs the extra compare")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(OWN / DEFAULT, dtype=torch.float32).eval()
    pieces = transformers.AutoTokenizer.from_pretrained(OWN / DEFAULT)(next(iter(FILLED)), return_tensors="pt")
    logits = theirs(**pieces).logits[0, pieces["input_ids"][0] == 103].softmax(-1)
    best = logits[0].topk(3)
    ours = small.fill(next(iter(FILLED)), top=3)[0]
    assert [small.tokenizer.vocabulary[index] for index in best.indices] == [one.piece for one in ours]
    np.testing.assert_allclose(best.values.detach(), [one.probability for one in ours], atol=1e-4)


def test_an_installed_wheel_has_it(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = "pip wheel --quiet --no-deps --no-build-isolation --wheel-dir out .".split()
    subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, check=True, capture_output=True)
    with ZipFile(next((tmp_path / "out").glob("*.whl"))) as wheel:
        inside = {name.partition(f"models/{DEFAULT}/")[2] for name in wheel.namelist()}
        assert "bertkit/py.typed" in wheel.namelist()  # type checkers may read the annotations
    assert inside - {""} == {file.name for file in (OWN / DEFAULT).iterdir()}


def test_the_demo_shows_what_pre_training_is_worth(tmp_path, capsys):
    demo.run_demo(tmp_path, epochs=5)
    told = capsys.readouterr().out
    assert "paris" in told
    scores = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("pre-trained", "untrained")]
    known, guessed = (one["metrics"]["accuracy"] for one in scores)
    assert known > guessed + 0.4
