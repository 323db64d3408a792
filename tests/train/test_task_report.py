import copy
import json

import pytest

from bertkit.errors import ArtifactError, DataError
from bertkit.train.log import Log
from bertkit.train.task_report import MAX_LABELS, MAX_TEXT, interval, read_results, shown, write_task_report

RESULTS = {
    "task": "classification",
    "set": "glue/sst2",
    "model": "a <model>",
    "headline": "accuracy",
    "metrics": {"accuracy": 0.912, "matthews": 0.823},
    "intervals": {"accuracy": [0.891, 0.93]},
    "labels": ["<bad>", "gut & schön"],
    "confusion": [[90, 10], [5, 1095]],
    "kinds": None,
    "breakdown": None,
    "calibration": {
        "temperature": 1.372,
        "fitted": 1.372,
        "before": {"ece": 0.061, "curve": [[0.6, 0.5, 10], [0.9, 0.8, 30]]},
        "after": {"ece": 0.017, "curve": [[0.6, 0.6, 20]]},
    },
    "threshold": None,
    "mistakes": [{"text": "<script>alert('東京')</script>", "gold": "<gold>", "answer": "no answer", "probability": 0.987}],
    "search": [{"lr": 2e-5, "batch": 16, "seed": 1, "score": 0.88}, {"lr": 5e-5, "batch": 32, "seed": 1, "score": 0.912}],
    "settings": {"optimizer": {"lr": 2e-5}},
    "data": {"train": {"file": "<train>.tsv", "rows": 67349, "fingerprint": "9f2c"}},
    "seconds": 90.0,
    "examples_per_second": 1234.5,
}


@pytest.fixture
def page(tmp_path):
    """Writes the page of a run with some results replaced."""

    def make(**changed):
        (tmp_path / "results.json").write_text(json.dumps(copy.deepcopy(RESULTS) | changed), encoding="utf-8")
        return write_task_report(tmp_path).read_text(encoding="utf-8")

    return make


def test_a_page_that_needs_nothing_else(page, tmp_path):
    with Log(tmp_path, quiet=True) as log:
        log.write(step=1, loss=0.7, lr=1e-5, examples_per_second=800.0, elapsed=1.0)
        log.write(step=1, epoch=0.5, dev_loss=0.6, dev_accuracy=0.8)
    made = page()
    for seen in (
        "glue/sst2",
        "91.2%",
        "95 % interval 89.1–93.0%",
        "0.823",
        "accuracy on dev",
        "1,095",
        "calibration error 1.7%",
    ):
        assert seen in made, seen
    for seen in ("1.372", "98.7% sure", "no answer", "optimizer.lr", "9f2c", "67,349", "1,234"):
        assert seen in made, seen
    assert made.count("<svg") == 2
    assert made.index("91.2%</td>") < made.index("88.0%</td>")  # the best of the search first
    for outside in ("http-equiv", "<script", "<link", "src="):
        assert outside not in made


def test_all_text_is_escaped(page):
    groups = [{"group": "<group>", "count": 1, "f1": 0.1}]
    made = page(set="<set>", metrics={"<metric>": 0.5}, headline="<metric>", intervals=None, breakdown=groups)
    for name in "set", "model", "metric", "group", "bad", "gold", "train":
        assert f"<{name}>" not in made, name
        assert f"&lt;{name}&gt;" in made, name
    assert "&lt;script&gt;alert(&#x27;東京&#x27;)" in made
    assert "gut &amp; schön" in made


def test_what_was_not_measured_is_left_out(tmp_path):
    bare = {"task": "regression", "model": "m", "headline": "pearson", "metrics": {"pearson": -0.1}}
    (tmp_path / "results.json").write_text(json.dumps(bare))
    made = write_task_report(tmp_path).read_text(encoding="utf-8")
    assert "-0.100" in made
    assert "<h2>" not in made
    assert "<svg" not in made


def test_kinds_groups_and_threshold(page):
    kind = {"precision": 0.5, "recall": 0.25, "f1": 0.333, "count": 1200}
    groups = [{"group": "answer of 1–2 words", "count": 10, "exact": 0.4, "f1": 1.0}]
    chosen = {"value": -1.234, "fitted": -1.234, "before_f1": 0.7, "after_f1": 0.75}
    made = page(confusion=None, kinds={"PER": kind}, breakdown=groups, threshold=chosen, calibration=None)
    for seen in ("PER", "33.3%", "1,200", "answer of 1–2 words", "100.0%", "-1.23", "F1 70.0% → 75.0%"):
        assert seen in made, seen
    assert "Confusion" not in made
    assert "Reliability" not in made


def test_what_was_fitted_and_not_kept_is_told(page):
    worse = RESULTS["calibration"] | {"temperature": 1.0, "fitted": 2.5}
    assert "a temperature of 2.500, which is no better and was not kept" in page(calibration=worse)
    assert "not kept" not in page()
    assert "F1 70.0%; another" in page(threshold={"value": 0.0, "fitted": 3.0, "before_f1": 0.7, "after_f1": 0.6})


def test_many_labels_become_a_list_and_long_texts_are_cut(page):
    count = MAX_LABELS + 1
    cells = [[0] * count for _ in range(count)]
    cells[3][7] = 42
    mistakes = [{"text": "x" * 2 * MAX_TEXT, "gold": "1919 or in 1919", "answer": "1920", "probability": None}]
    made = page(confusion=cells, labels=[f"label {n}" for n in range(count)], mistakes=mistakes)
    assert "<td>label 3</td><td>label 7</td><td class=number>42</td>" in made
    assert "class='matrix'" not in made
    assert "x" * MAX_TEXT + " …" in made
    assert "x" * (MAX_TEXT + 1) not in made
    assert "1919 or in 1919" in made


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, ArtifactError, "has no results.json"),
        ('{"task": "qa",\n "metr', ArtifactError, "results.json: not readable as JSON .* line 2"),
        ("[1]", ArtifactError, "expected a JSON object"),
        ("{}", DataError, "lacks headline, metrics, model, task"),
        ('{"task": "qa", "model": "m", "headline": "f1", "metrics": {}}', DataError, "lacks its headline metric 'f1'"),
    ],
)
def test_results_that_cannot_be_read(tmp_path, text, error, message):
    if text:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(error, match=message):
        read_results(tmp_path)


def test_figures_for_people():
    assert shown("accuracy", 0.9115) == "91.1%"
    assert shown("dev_spearman", 0.9115) == "0.911"
    assert shown("loss", 0.25) == "0.250"
    assert interval({"intervals": {"pearson": [-0.1, 0.2]}}, "pearson") == "-0.100–0.200"
    assert interval({}, "pearson") == ""
