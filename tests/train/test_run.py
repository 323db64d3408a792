import json
from dataclasses import replace

import pytest

from bertkit.errors import InputError, TrainingError
from bertkit.train.recipe import Recipe
from bertkit.train.run import agreed, parse_budget, rows_of


def test_budgets():
    assert [parse_budget(text) for text in ("90s", "20m", "1.5h", "2d")] == [90, 1200, 5400, 172_800]
    for bad in ("20", "m", "1h30m", "-5m", ""):
        with pytest.raises(InputError, match="such as 20m"):
            parse_budget(bad)
    with pytest.raises(InputError, match="expected more than nothing"):
        parse_budget("0s")


def test_rows_are_those_of_before_where_they_make_the_batch(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": {"row_tokens": 512}}))
    assert [rows_of(tmp_path, batch) for batch in (512, 1024, 1500, 256)] == [512, 512, 0, 0]
    assert [rows_of(tmp_path, 2048, ranks) for ranks in (2, 3, 4, 8)] == [512, 0, 512, 0]  # or the batch would grow
    assert rows_of(tmp_path / "none", 1024) == 0


def test_a_run_of_before_agrees_in_what_it_did_not_know_yet(tmp_path):
    written = agreed(tmp_path / "r", Recipe(), begun={"store": "s"}, fork=False)
    older = json.loads(written)
    del older["recipe"]["config"]["summary_of"]
    (tmp_path / "recipe.json").write_text(json.dumps(older))
    assert agreed(tmp_path, Recipe(), begun={"store": "s"}, fork=False) == written
    changed = replace(Recipe(), config=Recipe().config.with_(summary_of="mean"))
    with pytest.raises(TrainingError, match=r"recipe\.config\.summary_of: cls → mean"):
        agreed(tmp_path, changed, begun={"store": "s"}, fork=False)
