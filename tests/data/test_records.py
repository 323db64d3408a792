from dataclasses import FrozenInstanceError, replace

import pytest

from bertkit.data.records import Choice, Question, Record, Words, fingerprint, halves, part, texts

EACH = [
    Record("one", "two", label=("a", "b"), negative="three", id="7", place="f.csv:2"),
    Record("wörter 中文", label=1.5),
    Words(("A", "b"), ("B-X", "O"), document=3),
    Question("who?", "it was her", (("her", 7),), article="Her"),
    Choice("it was", ("her", "him"), label=0),
]


def test_records_are_frozen_and_small():
    for record in EACH:
        assert not hasattr(record, "__dict__")
        with pytest.raises(FrozenInstanceError):
            record.id = "9"


def test_texts_are_all_that_is_read():
    assert [texts(record) for record in EACH] == [
        ("one", "two", "three"),
        ("wörter 中文",),
        ("A b",),
        ("who?", "it was her"),
        ("it was", "her", "him"),
    ]


def test_fingerprint_is_of_the_content_in_order():
    assert fingerprint(EACH) == fingerprint(replace(record, place="elsewhere:1") for record in EACH)
    assert fingerprint([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    changed = [EACH[::-1], EACH[:-1], [replace(EACH[0], label="a"), *EACH[1:]], [replace(EACH[0], id=""), *EACH[1:]]]
    assert len({fingerprint(records) for records in [EACH, *changed]}) == 5


def test_halves_share_nothing_and_do_not_depend_on_the_order():
    records = [Record(f"text {number}") for number in range(1000)]
    first, second = halves(records)
    assert sorted(first + second) == list(range(1000))
    assert 440 < len(first) < 560
    again, _ = halves(records[::-1])
    assert {999 - index for index in again} == set(first)


def test_what_was_held_out_has_two_halves_too():
    held = [record for record in (Record(f"text {n}") for n in range(3000)) if part(record, 10) == 0]
    assert all(len(half) > 0.4 * len(held) for half in halves(held))


def test_what_belongs_together_stays_in_one_half():
    by_article = [Question(f"q {n}", f"c {n}", article=f"article {n % 7}") for n in range(70)]
    by_context = [Question(f"q {n}", f"context {n % 7}") for n in range(70)]
    for questions in (by_article, by_context):
        assert all(part(questions[n], 2) == part(questions[n % 7], 2) for n in range(70))
    assert part(Record("same", label="a"), 2) == part(Record("same", label="b"), 2)
