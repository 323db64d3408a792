from functools import partial

import pytest

from bertkit.data.engines import ENGINES, local


class Doubler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, unit):
        if unit == 13:
            raise ValueError("unit 13")
        return self.factor * unit


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    with local(partial(Doubler, 2), workers) as run:
        assert list(run(iter(range(12)))) == list(range(0, 24, 2))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_in_a_worker_reaches_the_caller(workers):
    with pytest.raises(ValueError, match="unit 13"), local(partial(Doubler, 2), workers) as run:
        list(run(iter(range(20))))


def test_units_are_taken_only_as_they_are_worked_on():
    taken = []

    def units():
        for unit in range(1000):
            taken.append(unit)
            yield unit

    with local(partial(Doubler, 2), 2) as run:
        next(run(units()))
    assert len(taken) < 10


def test_engines_have_names():
    assert list(ENGINES) == ["local", "ray"]
