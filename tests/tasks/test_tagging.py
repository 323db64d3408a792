"""No word is lost or shifted: whatever the words, the length and the context, each is told once, at its first piece."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nasty import ALPHABETS

from bertkit.data.inputs import pack_units
from bertkit.data.records import Words
from bertkit.data.windows import NOTHING
from bertkit.errors import DataError, InputError
from bertkit.model.config import Config
from bertkit.model.device import find_device
from bertkit.tasks.answering import answer_records
from bertkit.tasks.network import build_network
from bertkit.tasks.tagging import Tagging, _around
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENIZER = Tokenizer.from_vocabulary(
    [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "##ing", ".", "中"], cased=False
)
LABELS = ("B-X", "I-X", "O")
ODD = [
    "",
    " ",
    "\u200b",
    "\x00",
    "\u0301",
    "\ufeff",
    "İ",
    "ﬁ",
    "中文中文",
    "e\u0301te\u0301",
    "[SEP]",
    "x" * 101,
    "a.b.c.d.e.f.g",
]
words = st.one_of(
    st.sampled_from(["the", "cat", "purring", "cat", "don't", *ODD]),
    st.text(st.sampled_from("".join(ALPHABETS.values())), max_size=12),
)
sentences = st.lists(st.lists(words, min_size=1, max_size=12), min_size=1, max_size=6)


def tagging(**changes):
    return Tagging(TaskSettings(**(dict(task="tagging", labels=LABELS, max_length=16) | changes)))


def made(texts, draw=None, documents=2):
    """Records of about as many sentences to each document; labels are known where they can be drawn."""
    labels = lambda text: None if draw is None else tuple(LABELS[i] for i in draw.integers(3, size=len(text)))  # noqa: E731
    return [Words(tuple(text), labels(text), document=i * documents // len(texts)) for i, text in enumerate(texts)]


def first_piece(word):
    (pieces,) = TOKENIZER.pieces([word])
    return int(pieces.ids[0]) if len(pieces) else TOKENIZER.unk


@settings(deadline=None, max_examples=150)
@given(sentences, st.integers(4, 24), st.integers(0, 30), st.booleans(), st.integers(0, 2**32))
def test_every_word_is_told_at_its_first_piece(texts, length, stride, context, seed):
    records = made(texts, np.random.default_rng(seed))
    task = tagging(max_length=length, stride=stride, context=context)
    for record, inputs in zip(records, task.units(records, TOKENIZER), strict=True):
        told = set()
        for one in inputs:
            assert len(one) <= length
            assert one.ids[0] == TOKENIZER.cls and one.ids[-1] == TOKENIZER.sep
            assert len(one.places) == len(one.targets) == len(one.origin)
            assert (np.diff(one.places) > 0).all() and (np.diff(one.origin) > 0).all()
            assert ((one.places > 0) & (one.places < len(one) - 1)).all()
            assert one.ids[one.places].tolist() == [first_piece(record.words[word]) for word in one.origin]
            assert [LABELS[target] for target in one.targets] == [record.labels[word] for word in one.origin]
            told |= set(one.origin.tolist())
        assert told == set(range(len(record.words)))


@settings(deadline=None, max_examples=100)
@given(sentences, st.integers(4, 24), st.integers(0, 30), st.booleans())
def test_each_word_gets_one_label_from_its_most_central_window(texts, length, stride, context):
    """Logits that spell out window and place: the answer must be that of the window that shows most on the nearer side."""
    records = made(texts)
    task = tagging(max_length=length, stride=stride, context=context)
    units = task.units(records, TOKENIZER)
    draw = np.random.default_rng(0)
    logits = [[draw.normal(size=(len(one.places), 3)) for one in unit] for unit in units]
    for record, unit, values, answer in zip(records, units, logits, task.answers(records, units, logits), strict=True):
        assert len(answer.labels) == len(answer.probabilities) == len(record.words)
        for word, (label, chance) in enumerate(zip(answer.labels, answer.probabilities, strict=True)):
            views = []
            for window, one in enumerate(unit):
                for row in np.flatnonzero(one.origin == word):
                    place = int(one.places[row])
                    views.append((min(place, len(one) - 1 - place), -window, values[window][row]))
            _, _, best = max(views, key=lambda view: view[:2])
            powers = np.exp(best)
            assert label == LABELS[int(best.argmax())]
            assert chance == pytest.approx(powers.max() / powers.sum())


@settings(deadline=None, max_examples=100)
@given(sentences, st.integers(6, 40), st.integers(1, 3))
def test_context_stays_in_the_document_and_is_what_stands_around(texts, length, documents):
    records = made(texts, documents=documents)
    plain = tagging(max_length=10_000).units(records, TOKENIZER)
    bare = [unit[0].ids[1:-1].tolist() for unit in plain]
    for index, unit in enumerate(tagging(max_length=length, context=True).units(records, TOKENIZER)):
        if len(bare[index]) + 2 > length:
            continue
        (only,) = unit
        inner = only.ids[1:-1].tolist()
        same = [i for i, record in enumerate(records) if record.document == records[index].document]
        before = [one for i in same if i < index for one in bare[i]]
        after = [one for i in same if i > index for one in bare[i]]
        begin = int(only.places[0]) - 1
        assert inner[begin : begin + len(bare[index])] == bare[index]
        left, right = inner[:begin], inner[begin + len(bare[index]) :]
        assert left == before[len(before) - len(left) :]
        assert right == after[: len(right)]
        free = length - 2 - len(bare[index])
        assert len(left) + len(right) == min(free, len(before) + len(after))
        assert len(left) >= min(free // 2, len(before))
        assert len(right) >= min(free - free // 2, len(after))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 50), st.data())
def test_around_takes_the_nearest_pieces_on_both_sides(sizes, room, data):
    index = data.draw(st.integers(0, len(sizes) - 1))
    documents = sorted(data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes))))
    ends = np.cumsum(sizes)
    before, after = _around(np.array(documents), np.array(sizes), np.full(len(sizes), room))
    mine = [number for number, document in enumerate(documents) if document == documents[index]]
    first, last = ends[mine[0]] - sizes[mine[0]], ends[mine[-1]]
    begin, end = ends[index] - sizes[index], ends[index]
    right = min(last - end, max(room - room // 2, room - (begin - first)))
    left = min(begin - first, room - right)
    assert (before[index], after[index]) == (left, right)


def test_a_lone_sentence_has_no_context():
    record = Words(("the", "cat"))
    assert [len(unit[0]) for unit in tagging(context=True).units([record], TOKENIZER)] == [4]


def test_documents_are_told_apart_only_while_they_are_together():
    """A number that comes again later is another document: nothing beyond the neighbours is looked at."""
    records = [Words(("a",), document=0), Words(("b",), document=1), Words(("c",), document=0)]
    for record, unit in zip(records, tagging(context=True).units(records, TOKENIZER), strict=True):
        assert TOKENIZER.decode(unit[0].ids) == record.words[0]


def test_unknown_labels_have_no_target():
    (unit,) = tagging().units([Words(("the", "cat"))], TOKENIZER)
    assert unit[0].targets.tolist() == [NOTHING, NOTHING]


def test_bad_sentences_are_named():
    with pytest.raises(InputError, match="f:3 has no words"):
        tagging().units([Words(("a",)), Words((), place="f:3")], TOKENIZER)
    with pytest.raises(InputError, match="sentence 2 has no words"):
        tagging().units([Words(("a",)), Words(())], TOKENIZER)
    with pytest.raises(DataError, match=r"f:9.*'B-Y' was not seen"):
        tagging().units([Words(("a",), ("B-Y",), place="f:9")], TOKENIZER)
    with pytest.raises(InputError, match="expected room for one"):
        tagging(max_length=2).units([Words(("a",))], TOKENIZER)


def test_a_single_piece_beside_the_frame_is_room_enough():
    """The shortest windows that can be, each a piece long."""
    (unit,) = tagging(max_length=3, stride=1).units([Words(("cat", "abc"))], TOKENIZER)
    assert [one.origin.tolist() for one in unit] == [[0], [1], [], []]


def test_the_usual_stride_works_for_the_shortest_windows():
    (unit,) = tagging(max_length=3).units([Words(("cat", "abc"))], TOKENIZER)
    assert {word for one in unit for word in one.origin} == {0, 1}


def test_labels_are_those_of_the_words():
    settings = Tagging.learn(TaskSettings(), [Words(("a", "b"), ("O", "B-X")), Words(("c",), None), Words(("d",), ("O",))])
    assert settings.labels == ("B-X", "O")


def test_scores_count_entities_and_words():
    task = tagging()
    records = [Words(tuple("abc"), ("B-X", "I-X", "O")), Words(("d",), ("B-X",))]
    units = task.units(records, TOKENIZER)
    right = [[10.0 * np.eye(3)[one.targets] for one in unit] for unit in units]
    assert set(task.score(records, task.answers(records, units, right)).values()) == {1.0}
    wrong = [[10.0 * np.eye(3)[np.full(len(one.places), 2)] for one in unit] for unit in units]
    assert task.score(records, task.answers(records, units, wrong)) == {
        "entity_f1": 0.0, "entity_precision": 0.0, "entity_recall": 0.0, "accuracy": 0.25,
    }  # fmt: skip


@pytest.fixture(scope="module")
def network():
    sizes = dict(layers=1, width=16, heads=2, feedforward=32, positions=64, dropout=0.0, attention_dropout=0.0)
    return build_network(Config(vocabulary=len(TOKENIZER), **sizes), tagging()).eval()


def test_in_a_batch_each_word_is_still_at_its_place(network):
    """The row that the network reads, place by place."""
    records = made([["the", "cat"], ["purring"] * 9, ["", "cat", "."]], np.random.default_rng(0))
    task = tagging(max_length=9)
    units = task.units(records, TOKENIZER)
    data = pack_units(units, task.layout)
    wanted = [
        (first_piece(r.words[w]), r.labels[w]) for r, u in zip(records, units, strict=True) for o in u for w in o.origin
    ]
    found = [(int(data.batch.ids[p]), LABELS[t]) for p, t in zip(data.places, data.targets, strict=True)]
    assert found == wanted
    assert len(list(answer_records([network], task, TOKENIZER, records, find_device("cpu"), budget=20))) == 3


def test_a_word_longer_than_several_windows_is_answered(network):
    record = Words(("cat", "." * 60))
    (answer,) = answer_records([network], tagging(max_length=12), TOKENIZER, [record], find_device("cpu"), budget=12)
    assert len(answer.labels) == 2


def test_documents_are_not_cut_between_chunks(network, monkeypatch):
    """With context, what a sentence is answered does not depend on how many are read at once."""
    from bertkit.tasks import answering

    task, texts = tagging(max_length=20, context=True), [["the", "cat", f"{i}"] for i in range(12)]
    records = made(texts, documents=4)
    whole = list(answer_records([network], task, TOKENIZER, records, find_device("cpu")))
    monkeypatch.setattr(answering, "CHUNK", 2)
    for one, other in zip(whole, answer_records([network], task, TOKENIZER, records, find_device("cpu")), strict=True):
        assert one.labels == other.labels
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)


def test_nothing_to_tag():
    assert tagging().units([], TOKENIZER) == []
