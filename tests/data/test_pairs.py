"""Pairs are those of the published algorithm: compared with a plain, sequential telling of it on the same store."""

import random

import numpy as np
import pytest
from scipy.stats import ks_2samp
from support.stores import made_up_store

from bertkit.data.pairs import KINDS, plan_spans
from bertkit.errors import InputError

LENGTH = 128


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up_store(tmp_path_factory.mktemp("store") / "s", 28_000)


@pytest.fixture(scope="module")
def plan(store):
    return plan_spans(store, kind="next", length=LENGTH, short=0.1, seed=0, epoch=0)


def published(store, short, seed=0):
    """One example after the other, token by token. The target is drawn for each example, so that a tenth are short."""
    draw, documents, bounds = random.Random(seed), store.document_bounds, store.sentence_bounds
    sizes, room, rows = np.diff(bounds).tolist(), LENGTH - 3, []
    for begin, end in zip(documents[:-1].tolist(), documents[1:].tolist(), strict=True):
        i = begin
        while i < end:
            target = draw.randint(2, room) if draw.random() < short else room
            chunk, j = [], i
            while j < end and sum(chunk) < target:
                chunk.append(sizes[j])
                j += 1
            split = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a, b = sum(chunk[:split]), sum(chunk[split:])
            away = len(chunk) == 1 or draw.random() < 0.5
            if away:
                other = draw.randrange(len(documents) - 1)
                k, last = draw.randrange(documents[other], documents[other + 1]), documents[other + 1]
                b = 0
                while True:
                    b, k = b + sizes[k], k + 1
                    if b >= target - a or k >= last:
                        break
                j = i + split
            front = 0
            while a + b > room:
                front += draw.random() < 0.5
                a, b = (a - 1, b) if a > b else (a, b - 1)
            rows.append((a, b, away, front))
            i = j
    return np.array(rows)


def test_distributions_are_the_published(store, plan):
    expected = published(store, 0.1)
    assert len(plan) > 100_000
    assert abs(len(plan) - len(expected)) < 0.01 * len(expected)
    assert abs(plan.label.mean() - expected[:, 2].mean()) < 0.005
    for found, wanted in ((plan.a_size, expected[:, 0]), (plan.b_size, expected[:, 1])):
        assert ks_2samp(found, wanted).statistic < 0.01
    for label in (0, 1):
        mine, theirs = plan.label == label, expected[:, 2] == label
        assert ks_2samp((plan.a_size + plan.b_size)[mine], expected[theirs, :2].sum(1)).statistic < 0.012


def test_a_wrong_share_of_short_examples_would_be_seen(store, plan):
    other = published(store, 0.2, seed=1)
    assert ks_2samp(plan.a_size + plan.b_size, other[:, :2].sum(1)).statistic > 0.02


def test_pairs_are_what_they_say(store, plan):
    """True pairs lie side by side before cutting; the others come from another document."""
    owner = np.searchsorted(
        store.sentence_bounds[store.document_bounds], np.stack([plan.a_begin, plan.b_begin]), side="right"
    )
    assert (owner[0] == owner[1])[plan.label == 0].all()
    assert (owner[0] != owner[1])[plan.label == 1].all()
    gap = plan.b_begin - plan.a_begin - plan.a_size
    assert (gap[plan.label == 0] >= 0).all()
    assert (plan.sizes <= LENGTH).all()
    assert (plan.a_size > 0).all()
    assert (plan.b_size > 0).all()


def test_spans_stay_inside_their_documents(store, plan):
    ends = store.sentence_bounds[store.document_bounds]
    for begin, size in ((plan.a_begin, plan.a_size), (plan.b_begin, plan.b_size)):
        assert (np.searchsorted(ends, begin, side="right") == np.searchsorted(ends, begin + size, side="left")).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_a_function_of_its_arguments(store, kind):
    def sizes(seed, epoch):
        return plan_spans(store, kind=kind, length=64, short=0.1, seed=seed, epoch=epoch).sizes.tolist()

    assert sizes(1, 2) == sizes(1, 2)
    assert sizes(1, 2) != sizes(1, 3)
    assert sizes(1, 2) != sizes(2, 2)


def test_blocks_do_not_change_the_plan(store, plan, monkeypatch):
    monkeypatch.setattr("bertkit.data.pairs._BLOCK", 5000)
    again = plan_spans(store, kind="next", length=LENGTH, short=0.1, seed=0, epoch=0)
    assert np.array_equal(again.a_begin, plan.a_begin)
    assert np.array_equal(again.b_begin, plan.b_begin)


def test_order_swaps_half_of_the_pairs(store):
    plan = plan_spans(store, kind="order", length=LENGTH, short=0.1, seed=0, epoch=0)
    assert abs(plan.label.mean() - 0.5) < 0.01
    first = plan.a_begin < plan.b_begin
    assert (first == (plan.label == 0)).all()


def test_none_takes_whole_sentences_and_all_of_them(store):
    plan = plan_spans(store, kind="none", length=LENGTH, short=0.0, seed=0, epoch=0)
    assert (plan.b_size == 0).all()
    assert plan.a_size.sum() == store.tokens
    assert np.isin(plan.a_begin, store.sentence_bounds).all()
    assert np.isin(plan.a_begin + plan.a_size, store.sentence_bounds).all()
    assert (plan.sizes <= LENGTH).all()


def test_unknown_kinds_are_refused(store):
    with pytest.raises(InputError, match="pairs is 'both'; expected one of next, order, none"):
        plan_spans(store, kind="both", length=64, short=0.1, seed=0, epoch=0)
