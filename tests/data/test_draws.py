import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.draws import below, draw, fair_coins, permute, uniform


def test_draws_depend_on_every_counter_and_on_nothing_else():
    rows = draw(1, 2, np.arange(1000)[:, None], np.arange(8))
    assert rows.shape == (1000, 8)
    assert len(np.unique(rows)) == 8000
    assert draw(1, 2, 7, 3)[0] == rows[7, 3]
    assert draw(2, 2, 7, 3)[0] != rows[7, 3]


def test_uniform_is_uniform():
    values = uniform(draw(0, np.arange(200_000)))
    counts, _ = np.histogram(values, 20, (0, 1))
    assert abs(counts - 10_000).max() < 500
    assert np.bincount(below(draw(1, np.arange(60_000)), 6)).min() > 9500


@given(st.integers(1, 3000), st.integers(0, 99), st.integers(0, 5))
def test_a_permutation_is_one(size, seed, epoch):
    order = permute(np.arange(size), size, seed, epoch)
    assert sorted(order.tolist()) == list(range(size))
    some = np.arange(size)[:: max(1, size // 7)]
    assert permute(some, size, seed, epoch).tolist() == order[some].tolist()


def test_permutations_differ_and_shuffle():
    orders = [permute(np.arange(5000), 5000, 0, epoch) for epoch in range(3)]
    assert (orders[0] != orders[1]).mean() > 0.99
    assert abs(np.corrcoef(orders[0], np.arange(5000))[0, 1]) < 0.05


def test_coins_are_fair():
    count = np.full(20_000, 100)
    heads = fair_coins(draw(0, np.arange(20_000)[:, None], np.arange(2)), count)
    assert abs(heads.mean() - 50) < 0.2
    assert abs(heads.std() - 5) < 0.15
    assert fair_coins(draw(0, np.arange(3)[:, None], np.arange(2)), np.array([0, 64, 328]))[0] == 0
    assert fair_coins(np.full((1, 2), 2**64 - 1, np.uint64), np.array([70]))[0] == 70
