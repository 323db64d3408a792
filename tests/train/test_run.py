import pytest

from bertkit.errors import InputError
from bertkit.train.run import parse_budget


def test_budgets():
    assert [parse_budget(text) for text in ("90s", "20m", "1.5h", "2d")] == [90, 1200, 5400, 172_800]
    for bad in ("20", "m", "1h30m", "-5m", ""):
        with pytest.raises(InputError, match="such as 20m"):
            parse_budget(bad)
