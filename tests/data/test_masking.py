import numpy as np
import pytest

from bertkit.data.draws import draw
from bertkit.data.masking import SCHEMES, Masking, Row, _spans, _words, choose, replace
from bertkit.errors import InputError

MASK, ORDINARY = 4, np.arange(5, 1000)


def make_row(examples=2000, seed=0):
    """Examples of [CLS] words [SEP] words [SEP], 10 to 128 tokens long; every third piece continues a word."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(10, 129, examples)
    owners = np.repeat(np.arange(examples), sizes)
    positions = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    special = (positions == 0) | (positions == sizes[owners] // 2) | (positions == sizes[owners] - 1)
    ids = np.where(special, 3, rng.integers(5, 1000, len(owners)))
    starts = special | np.append(True, special[:-1]) | (rng.random(len(owners)) < 0.7)
    return Row(ids, owners, positions, special, starts, sizes)


def hide(scheme, rate=0.15, seed=0):
    row = make_row()
    bits = draw(seed, 0, row.owners, row.positions)
    return row, choose(row, Masking(scheme=scheme, rate=rate), bits)


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_rate_is_met_in_every_example_and_specials_stay(scheme, rate):
    row, chosen = hide(scheme, rate)
    assert not (chosen & row.special).any()
    quota = np.maximum(1, np.rint(rate * row.sizes))
    counts = np.bincount(row.owners[chosen], minlength=len(row.sizes))
    assert (counts <= quota).all()
    if scheme == "piece":
        assert (counts == quota).all()
    assert counts.sum() > 0.97 * quota.sum()


def test_every_piece_is_as_likely_as_any_other():
    row = make_row(200)
    hits = np.zeros(len(row.ids))
    for seed in range(300):
        hits += choose(row, Masking(), draw(seed, 0, row.owners, row.positions))
    share = hits[~row.special] / 300
    assert abs(share.mean() - 0.155) < 0.01
    assert share.std() < 0.03


def test_whole_words_are_hidden_whole():
    row, chosen = hide("whole-word")
    inside = ~row.starts & ~row.special
    assert (chosen[1:] == chosen[:-1])[inside[1:]].all()


@pytest.mark.parametrize("scheme", ["whole-word", "span"])
def test_no_word_is_longer_than_the_quota_not_even_the_first(scheme):
    """Three times [CLS] w ##w ##w ##w [SEP], of which one piece may be hidden."""
    sizes, begins, ends = np.full(3, 6), np.tile([1, 1, 0, 0, 0, 1], 3) > 0, np.tile([1, 0, 0, 0, 0, 1], 3) > 0
    places = np.arange(18)
    row = Row(places, places // 6, places % 6, ends, begins, sizes)
    assert not choose(row, Masking(scheme=scheme), draw(0, places)).any()


def test_spans_have_the_lengths_of_spanbert():
    """In words: geometric with p = 0.2, at most ten, mean about 3.8."""
    places, words, nothing = np.arange(100_000), np.ones(100_000, bool), np.zeros(100_000, bool)
    row = Row(places, np.zeros_like(places), places, nothing, words, np.array([100_000]))
    spans = _spans(_words(row), draw(0, places))
    lengths = np.bincount(spans.ends - spans.begins, minlength=12)
    assert lengths[0] == lengths[11] == 0
    assert abs((spans.ends - spans.begins).mean() - 3.8) < 0.03
    assert abs(lengths[2] / lengths[1] - 0.8) < 0.03


def test_spans_are_hidden_in_whole_words_and_longer_runs():
    row, chosen = hide("span")
    inside = ~row.starts & ~row.special
    assert (chosen[1:] == chosen[:-1])[inside[1:]].all()
    runs = {
        scheme: np.count_nonzero(hidden & ~np.append(False, hidden[:-1]))
        for scheme in SCHEMES
        for hidden in [hide(scheme)[1]]
    }
    assert runs["span"] < 0.5 * runs["whole-word"] < 0.5 * runs["piece"]


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 0.2)])
def test_the_split_is_as_asked(mask, random):
    row, chosen = hide("piece")
    masking = Masking(mask=mask, random=random)
    ids = replace(row, chosen, masking, draw(0, 1, row.owners, row.positions), MASK, ORDINARY)
    assert (ids == row.ids)[~chosen].all()
    masked, changed = ids[chosen] == MASK, (ids != row.ids)[chosen]
    assert abs(masked.mean() - mask) < 0.01
    assert abs((changed & ~masked).mean() - random) < 0.01
    assert np.isin(ids[chosen][changed & ~masked], ORDINARY).all()


def test_a_span_shares_one_fate():
    row, chosen = hide("span")
    ids = replace(row, chosen, Masking(scheme="span"), draw(0, 1, row.owners, row.positions), MASK, ORDINARY)
    together = chosen[1:] & chosen[:-1]
    assert ((ids[1:] == MASK) == (ids[:-1] == MASK))[together].all()


def test_shares_are_checked():
    for bad in (dict(rate=0), dict(rate=1.5), dict(mask=0.9, random=0.2), dict(random=-0.1)):
        with pytest.raises(InputError, match="not shares of a whole"):
            Masking(**bad)
    with pytest.raises(InputError, match="expected one of piece, whole-word, span"):
        Masking(scheme="word")
