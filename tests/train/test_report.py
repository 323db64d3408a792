import json
from types import SimpleNamespace

import pytest
import torch
from support.batches import pack

from bertkit.train.log import Log
from bertkit.train.report import _samples, write_report


@pytest.fixture
def run(tmp_path):
    recipe = {"name": "a <b> c", "objective": "masked", "optimizer": {"lr": 0.1}, "phases": [{"length": 1}]}
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": recipe}))
    with Log(tmp_path, quiet=True) as log:
        for step in (1, 2):
            log.write(
                step=step, masked_loss=5 / step, masked_accuracy=0.1, lr=0.1, tokens=9, elapsed=2.0, tokens_per_second=4.5
            )
        log.write(step=2, held_out_loss=2.0, held_out_perplexity=7.4, held_out_accuracy=0.2, held_out_next_accuracy=0.7)
    return tmp_path


def test_a_page_that_needs_nothing_else(run):
    page = write_report(run, samples=["<span class='right'>word</span>"]).read_text()
    assert page.count("<svg") == 1
    assert "a &lt;b&gt; c" in page
    assert "optimizer.lr" in page
    assert "70.0%" in page
    assert "class='right'" in page
    for outside in ("http-equiv", "<script", "<link", "src="):
        assert outside not in page


def test_a_run_without_rows_has_a_page_too(run):
    (run / "metrics.jsonl").unlink()
    page = write_report(run).read_text()
    assert "<h2>Recipe</h2>" in page and "nothing was held out" in page


def test_a_page_says_who_fills_in_and_whose_loss_it_shows(run):
    assert "the model&#x27;s piece" in write_report(run, samples=["a text"]).read_text()
    (run / "recipe.json").write_text(json.dumps({"recipe": {"name": "r", "objective": "replaced"}}))
    with Log(run, quiet=True) as log:
        log.write(step=3, token_loss=0.2, generator_loss=9.0, generator_accuracy=0.5)
    page = write_report(run, samples=["a text"]).read_text()
    assert "the generator&#x27;s piece" in page
    assert "token loss" in page and "generator accuracy" in page and "generator loss" not in page


def test_samples_read_as_text():
    texts = ["<s>", " the", " bak", "ery", "<mask>", " <b>"]
    row = SimpleNamespace(batch=pack([[0, 1, 4, 3], [0, 1]]), places=torch.tensor([2]), hidden=1, targets=torch.tensor([2]))
    wrong = "<span class='wrong'><s> &lt;b&gt;</s>  bak</span>"
    assert list(_samples(row, [5], texts)) == [f"&lt;s&gt; the{wrong}ery"]
    assert list(_samples(row, [2], texts)) == ["&lt;s&gt; the<span class='right'> bak</span>ery"]
