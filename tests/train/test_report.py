import json

import pytest

from bertkit.train.log import Log
from bertkit.train.report import write_report


@pytest.fixture
def run(tmp_path):
    (tmp_path / "recipe.json").write_text(
        json.dumps({"recipe": {"name": "a <b> c", "optimizer": {"lr": 0.1}, "phases": [{"length": 1}]}})
    )
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
    assert "<h2>Recipe</h2>" in write_report(run).read_text()
