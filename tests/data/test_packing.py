import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import pack

from bertkit.data.packing import SMALL, Shapes, batches
from bertkit.errors import InputError

lengths = st.lists(st.integers(1, 64), min_size=1, max_size=40)
SHAPES = Shapes(budget=128, lengths=(8, 16, 32, 64))


def numbered(sizes):
    """Sequences whose ids tell them apart."""
    return [np.arange(size) + 1000 * index for index, size in enumerate(sizes)]


@given(lengths)
def test_a_batch_holds_every_token_once_and_no_other(sizes):
    ids = numbered(sizes)
    batch = pack(ids, [np.full(size, 1) for size in sizes])
    assert batch.ids.tolist() == np.concatenate(ids).tolist()
    assert batch.positions.tolist() == [place for size in sizes for place in range(size)]
    assert batch.boundaries.tolist() == [0, *np.cumsum(sizes)]
    assert batch.longest == max(sizes)
    assert batch.segments.tolist() == [1] * sum(sizes)


@given(lengths)
def test_grids_lead_each_token_there_and_back(sizes):
    batch = pack(numbered(sizes))
    flat = np.concatenate([bucket.tokens.flatten() for bucket in batch.buckets])
    assert flat[batch.order.numpy()].tolist() == list(range(sum(sizes)))
    inside = sum(bucket.tokens.numel() if bucket.inside is None else int(bucket.inside.sum()) for bucket in batch.buckets)
    assert inside == sum(sizes)
    assert sum(bucket.tokens.numel() for bucket in batch.buckets) <= max(SMALL, 2 * sum(sizes))
    assert len(batch.buckets) <= 7


@given(lengths, st.sampled_from([None, SHAPES]))
def test_batches_cover_all_sequences_within_the_budget(sizes, shapes):
    ids, seen, found = numbered(sizes), [], set()
    for members, batch in batches(ids, budget=128, shapes=shapes):
        seen += members.tolist()
        tokens = sum(sizes[index] for index in members)
        assert tokens <= 128
        assert batch.ids[:tokens].tolist() == np.concatenate([ids[index] for index in members]).tolist()
        found.add((len(batch.ids), len(batch.boundaries), batch.longest, *(b.tokens.shape for b in batch.buckets)))
    assert sorted(seen) == list(range(len(sizes)))
    if shapes:
        assert len(found) <= len(shapes.lengths)


@given(lengths)
def test_fixed_boundaries_cover_the_row_in_short_steps(sizes):
    for _, batch in batches(numbered(sizes), shapes=SHAPES):
        steps = np.diff(batch.boundaries)
        assert batch.boundaries[-1] == SHAPES.budget
        assert (steps >= 0).all()
        assert steps.max() <= batch.longest


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="at least one sequence"):
        pack([])
    with pytest.raises(InputError, match="at least one token"):
        pack([np.zeros(0, int)])
    with pytest.raises(InputError, match="fits none of the lengths"):
        pack([np.zeros(65, int)], shapes=SHAPES)
    with pytest.raises(InputError, match="do not fit a row of 128"):
        pack([np.zeros(60, int)] * 3, shapes=SHAPES)


def test_a_few_long_sequences_lie_apart_from_many_short_ones():
    batch = pack([np.ones(size, np.int64) for size in [10] * 30 + [60] * 2])
    assert [tuple(bucket.tokens.shape) for bucket in batch.buckets] == [(30, 10), (2, 60)]
    assert len(pack([np.ones(size, np.int64) for size in range(8, 12)]).buckets) == 1
