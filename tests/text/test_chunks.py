import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nasty import ALPHABETS, nasty

from bertkit.text.chunks import BLOCK, DELETED, Numbering, cut

CHARACTERS = "".join(ALPHABETS.values())
# The definition: tab, newline, return, and the separators of Unicode (Zs, Zl, Zp).
SPACE = re.compile("[\t\n\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def split(text: str) -> list[str]:
    return [chunk for chunk in SPACE.split(re.sub(f"[{DELETED}]", "", text)) if chunk]


def cut_by_text(texts):
    chunks = cut(texts)
    found = chunks.texts(np.arange(len(chunks.begins)))
    return [found[begin:end] for begin, end in zip(chunks.boundaries, chunks.boundaries[1:], strict=False)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(CHARACTERS))), max_size=5))
def test_chunks_are_cut_at_white_space_alone(texts):
    assert cut_by_text(texts) == [split(text) for text in texts]


def test_nasty_texts_are_cut_alike():
    texts = nasty(3000, seed=7)
    assert cut_by_text(texts) == [split(text) for text in texts]


words = st.text(st.sampled_from("abc中é"), min_size=1, max_size=24)


@settings(deadline=None)
@given(st.lists(st.lists(words, max_size=30), max_size=6))
def test_equal_chunks_have_equal_numbers_and_new_ones_are_told(rounds):
    numbering, known = Numbering(), []
    for chunks in rounds:
        numbers, new = numbering.number(cut([" ".join(chunks)]))
        known += new
        assert [known[number] for number in numbers] == chunks
    assert len(set(known)) == len(known)


def test_keys_at_the_edge_of_sixteen_bytes_differ():
    chunks = ["a" * size for size in (7, 8, 9, 15, 16, 17, 18)] + [
        "a" * 15 + "b",
        "a" * 8 + "b",
        "aé" * 5,
        "\x01",
        "\x01\x01",
        "\x00",
    ]
    numbers, new = Numbering().number(cut([" ".join(chunks)]))
    assert len(set(numbers.tolist())) == len(new) == len(chunks)


def test_the_table_grows_and_keeps_its_numbers():
    numbering = Numbering()
    chunks = [f"w{index}" for index in range(3 * BLOCK)]
    first, new = numbering.number(cut([" ".join(chunks)]))
    assert sorted(first.tolist()) == list(range(len(chunks)))
    assert [new[number] for number in first] == chunks
    size = numbering.size
    again, none = numbering.number(cut([" ".join(reversed(chunks))]))
    assert none == []
    assert again.tolist() == first.tolist()[::-1]
    assert numbering.size == size == 12 * len(numbering._numbers)


def test_no_texts_no_chunks():
    numbers, new = Numbering().number(cut([]))
    assert len(numbers) == 0
    assert new == []
    assert cut(["", " "]).boundaries.tolist() == [0, 0, 0]
