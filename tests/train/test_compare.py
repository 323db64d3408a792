import io
import json

import pytest
from rich.console import Console

from bertkit.errors import ArtifactError, InputError
from bertkit.train.compare import compare_runs, comparison_table


@pytest.fixture
def runs(tmp_path):
    folders = []
    for name, lr, score, fingerprint in ("[a]", 2e-5, 0.9, "x1"), ("b", 5e-5, 0.8, "x1"):
        results = {"task": "classification", "set": None, "model": "m", "headline": "accuracy", "seconds": 90.0}
        results |= {
            "metrics": {"accuracy": score, "loss": 1 - score},
            "intervals": {"accuracy": [score - 0.1, score + 0.05]},
        }
        results |= {"settings": {"seed": 1, "optimizer": {"lr": lr}}, "data": {"dev": {"fingerprint": fingerprint}}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(results))
        folders.append(tmp_path / name)
    return folders


def change(run, **fields):
    file = run / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def text(rows, width=120):
    console = Console(width=width, file=io.StringIO())
    console.print(comparison_table(rows))
    return console.file.getvalue()


def test_one_row_a_run_with_what_differs(runs):
    first, second = compare_runs(runs)
    assert (first["run"], first["metrics"]["accuracy"], first["intervals"]["accuracy"][0]) == ("[a]", 0.9, 0.8)
    assert first["settings"] == {"optimizer.lr": "2e-05"}
    assert second["settings"] == {"optimizer.lr": "5e-05"}
    json.dumps([first, second])


def test_other_data_and_other_models_are_seen(runs):
    change(runs[1], data={"dev": {"fingerprint": "y2"}}, model="n", settings={"seed": 1})
    rows = compare_runs(runs)
    assert [row["settings"] for row in rows] == [
        {"optimizer.lr": "2e-05", "data.dev": "x1"},
        {"optimizer.lr": "", "data.dev": "y2"},
    ]
    assert "model" in text(rows)


def test_the_table(runs):
    told = [line.split() for line in text(compare_runs(runs), 80).strip().splitlines()]
    assert told == [
        ["run", "[a]", "b"],
        ["accuracy", "90.0%", "(80.0–95.0%)", "80.0%", "(70.0–85.0%)"],
        ["loss", "0.100", "0.200"],
        ["minutes", "1.5", "1.5"],
        ["optimizer.lr", "2e-05", "5e-05"],
    ]


def test_many_runs_are_one_below_the_other(runs):
    head, first, second, *_ = text(compare_runs([*runs] * 3), 400).strip().splitlines()
    assert head.split() == ["run", "accuracy", "loss", "minutes", "optimizer.lr"]
    assert first.split()[1:] == ["90.0%", "(80.0–95.0%)", "0.100", "1.5", "2e-05"]
    assert second.split()[1:] == ["80.0%", "(70.0–85.0%)", "0.200", "1.5", "5e-05"]


def test_runs_of_different_tasks_leave_cells_empty(runs):
    change(runs[1], task="qa", headline="f1", metrics={"f1": 0.5}, intervals=None, seconds=None)
    told = {line.split()[0]: line.split()[1:] for line in text(compare_runs(runs)).splitlines()}
    assert list(told)[:4] == ["run", "task", "accuracy", "f1"]
    assert (told["f1"], told["task"][1], told["minutes"]) == (["50.0%"], "qa", ["1.5"])


def test_runs_of_one_name_are_told_apart(runs, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").mkdir()
    (tmp_path / "other" / "b" / "results.json").write_text((runs[1] / "results.json").read_text())
    names = [row["run"] for row in compare_runs([*runs, tmp_path / "other" / "b"])]
    assert names == ["[a]", str(runs[1]), str(tmp_path / "other" / "b")]


def test_runs_that_cannot_be_compared(runs, tmp_path):
    with pytest.raises(InputError, match="no runs"):
        compare_runs([])
    with pytest.raises(ArtifactError, match="has no results"):
        compare_runs([runs[0], tmp_path])
    (runs[1] / "results.json").write_text('{"task": ')
    with pytest.raises(ArtifactError, match=r"not readable as JSON .*; make or fetch it again"):
        compare_runs(runs)
