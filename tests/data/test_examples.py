import pickle

import numpy as np
import pytest
import torch
from support.stores import made_up_store, made_up_tokenizer

from bertkit.data.examples import EPOCH, NOTHING, ExampleSettings, ExampleSource, Masking
from bertkit.data.store import Piece, Store, write_manifest, write_shard
from bertkit.errors import DataError


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up_store(tmp_path_factory.mktemp("store") / "s", 400)


def source(store, tokens=1024, seed=0, **settings):
    return ExampleSource(store, ExampleSettings(**settings), seed=seed, tokens=tokens)


def rows(source, cursor=0, epochs=1):
    """All rows of an epoch."""
    while cursor < epochs * EPOCH:
        examples, cursor = source.next_row(cursor)
        yield examples


@pytest.mark.parametrize("settings", [{}, {"pairs": "none", "short": 0.0}, {"pairs": "order"}, {"causal": True}])
def test_an_epoch_shows_every_example_once(store, settings):
    it = source(store, **settings)
    numbers = np.concatenate([examples.numbers for examples in rows(it)])
    assert sorted(numbers.tolist()) == list(range(len(it.plan(0))))
    assert numbers[:50].tolist() != sorted(numbers[:50].tolist())


@pytest.mark.parametrize("scheme", ["piece", "whole-word", "span"])
def test_targets_are_what_stood_there(store, scheme):
    it = source(store, masking=Masking(scheme=scheme))
    for examples in list(rows(it))[:5]:
        found = it.batch(examples)
        spans = it.plan(0)[examples.numbers]
        original = [store.ids_at(np.arange(b, b + n)) for b, n in zip(spans.a_begin, spans.a_size, strict=True)]
        ids, places = found.batch.ids.clone(), found.places[: found.hidden]
        ids[places] = found.targets[: found.hidden]
        bounds = found.batch.boundaries
        for index, a in enumerate(original):
            row = ids[bounds[index] : bounds[index + 1]]
            assert row[0] == it.tokenizer.cls
            assert row[1 : 1 + len(a)].tolist() == a.tolist()
            assert row[1 + len(a)] == row[-1] == it.tokenizer.sep
        assert (found.targets[found.hidden :] == NOTHING).all()
        assert found.labels[: len(spans)].tolist() == spans.label.tolist()
        assert found.pairs == len(spans)
        assert not torch.isin(found.targets[: found.hidden], torch.tensor([it.tokenizer.cls, it.tokenizer.sep])).any()


def test_causal_targets_are_the_next_pieces(store):
    it = source(store, causal=True)
    found = it.batch(it.next_row(0)[0])
    ids, places = found.batch.ids, found.places[: found.hidden]
    assert (ids[places + 1] == found.targets[: found.hidden]).all()
    assert found.hidden == found.tokens - found.pairs


def test_a_row_is_a_function_of_its_cursor(store):
    one, two = source(store), source(store)
    cursor = 0
    for _ in range(4):
        _, cursor = one.next_row(cursor)
    again, _ = two.next_row(cursor)
    expected, _ = one.next_row(cursor)
    a, b = one.batch(expected), two.batch(again)
    assert torch.equal(a.batch.ids, b.batch.ids)
    assert torch.equal(a.places, b.places)
    other = source(store, seed=1)
    assert not torch.equal(a.batch.ids, other.batch(other.next_row(cursor)[0]).batch.ids)


def test_the_next_epoch_is_planned_before_it_comes(store):
    it = source(store)
    *_, last = found = list(rows(it))
    late = [examples.late for examples in found]
    assert late == sorted(late)
    assert 0.3 < np.mean(late) < 0.6
    told = pickle.loads(pickle.dumps(it))  # as it goes to other processes, while an epoch is being planned
    assert sorted(it._plans) == [0, 1]
    assert not told._plans
    told.batch(last)
    assert sorted(told._plans) == [0, 1]
    alone = source(store).plan(1)
    for one in (it, told):
        np.testing.assert_array_equal(one.plan(1).a_begin, alone.a_begin)
        assert sorted(one._plans) == [0, 1]


def test_held_out_examples_have_no_next_epoch(store):
    it = ExampleSource(store, ExampleSettings(), seed=0, tokens=1024, held_out=0.3, evaluation=True)
    assert not any(examples.late for examples in it.first(10_000))
    assert list(it._plans) == [0]


def test_masks_are_drawn_anew_each_epoch(store):
    it = source(store, pairs="none", short=0.0)
    plans = [it.plan(epoch) for epoch in (0, 1)]
    assert np.array_equal(plans[0].a_begin, plans[1].a_begin)
    numbers = np.arange(5)
    hidden = [it.batch(type(it.next_row(0)[0])(epoch, numbers)).places for epoch in (0, 1)]
    assert not torch.equal(*hidden)


def test_shapes_are_the_same_for_every_row(store):
    it = source(store)
    shapes = set()
    for examples in rows(it):
        found = it.batch(examples)
        tensors = (
            found.batch.ids,
            found.batch.boundaries,
            found.places,
            found.targets,
            found.labels,
            found.batch.buckets[0].tokens,
        )
        shapes.add(tuple(tensor.shape for tensor in tensors))
        assert found.tokens <= 1024
    assert len(shapes) == 1


def test_rows_of_any_shape_show_the_same(store):
    it = source(store)
    free = ExampleSource(store, it.settings, seed=0, tokens=1024, fixed=False)
    for examples in rows(it):
        a, b = it.batch(examples), free.batch(examples)
        assert len(b.batch.ids) == a.tokens == b.tokens
        assert torch.equal(a.batch.ids[: a.tokens], b.batch.ids)
        assert torch.equal(a.places, b.places) and torch.equal(a.targets, b.targets)
        assert a.labels[: a.pairs].tolist() == b.labels[: b.pairs].tolist()


def test_sentence_pairs_need_two_documents_beside_what_is_held_out(tmp_path):
    two, three = (made_up_store(tmp_path / str(n), n, shards=1, longest=600) for n in (2, 3))
    held_out = dict(seed=0, tokens=1024, held_out=0.01)
    with pytest.raises(DataError, match=r"2 documents, too few to train on and to hold 1.0% out"):
        ExampleSource(two, ExampleSettings(), **held_out)
    ExampleSource(two, ExampleSettings(pairs="none"), **held_out)
    assert set(ExampleSource(three, ExampleSettings(), **held_out).plan(0).label) == {0, 1}
    assert set(source(two).plan(0).label) == {0, 1}


def test_the_order_of_sentences_needs_two_in_a_document(tmp_path):
    lonely = np.full(9, 3), np.ones(9, np.int64)
    (tmp_path / "tokenizer").mkdir()
    made_up_tokenizer().write_files(tmp_path / "tokenizer")
    shard = write_shard(tmp_path, 0, [Piece(np.arange(27, dtype=np.uint16), *lonely)])
    write_manifest(tmp_path, [shard], np.dtype(np.uint16), {"settings": {}})
    with pytest.raises(DataError, match="no document has two sentences to tell the order of"):
        source(Store(tmp_path), pairs="order")


def test_a_row_must_hold_an_example(store):
    with pytest.raises(
        DataError, match=r"a row of 64 tokens is shorter than .* 128; set row_tokens to that or more, batch_tokens"
    ):
        source(store, tokens=64)


def test_a_cursor_behind_an_epoch_s_end_goes_on_with_the_next(store):
    """A fork may have shorter epochs than the run it comes from."""
    it = source(store)
    beyond, behind = it.next_row(len(it.plan(0)) + 7)
    expected, cursor = it.next_row(EPOCH)
    assert (beyond.epoch, behind) == (1, cursor)
    assert beyond.numbers.tolist() == expected.numbers.tolist()
