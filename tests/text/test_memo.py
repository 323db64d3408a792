from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nasty import ALPHABETS, nasty

from bertkit.errors import InputError
from bertkit.text.chunks import LONG_CHUNK
from bertkit.text.memo import CorpusEncoder
from bertkit.text.tokenizer import Tokenizer

CHARACTERS = "".join(ALPHABETS.values())


def split(encoder, texts):
    row, bounds = encoder.encode(texts)
    assert row.dtype == np.int32
    return [row[begin:end].tolist() for begin, end in pairwise(bounds)]


def library(tokenizer, texts):
    return [pieces.ids.tolist() for pieces in tokenizer.pieces(texts)]


@pytest.fixture(scope="module", params=[False, True], ids=["uncased", "cased"])
def wide(request, tokenizer):
    """A tokenizer that knows every nasty character, so that different ways to split show in the ids."""
    pieces = [*tokenizer.vocabulary, *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]
    return Tokenizer.from_vocabulary(list(dict.fromkeys(pieces)), cased=request.param)


def test_the_same_ids_cold_and_warm(wide):
    texts = nasty(3000, seed=4)
    encoder, expected = CorpusEncoder(wide), library(wide, texts)
    assert split(encoder, texts) == expected
    assert split(encoder, texts) == expected
    assert [split(encoder, [text])[0] for text in texts[:200]] == expected[:200]


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(CHARACTERS))), max_size=4))
def test_any_text_gives_the_library_s_ids(wide, texts):
    assert split(CorpusEncoder(wide), texts) == library(wide, texts)


@pytest.mark.parametrize("character", "\x0b\x0c\x1c\x1d\x1e\x1f\x85")
def test_deleted_characters_do_not_cut(wide, character):
    assert split(CorpusEncoder(wide), [f"ba{character}ker"]) == library(wide, ["baker"])


def test_nothing_gives_nothing(wide):
    encoder = CorpusEncoder(wide)
    assert split(encoder, []) == []
    assert split(encoder, ["", " \n", "a", ""]) == [[], [], library(wide, ["a"])[0], []]


def test_a_full_memo_is_emptied_and_the_ids_stay(wide):
    encoder = CorpusEncoder(wide, memo_bytes=800_000)
    texts = nasty(500, seed=5)
    expected = library(wide, texts)
    for begin in range(0, 500, 10):
        assert split(encoder, texts[begin : begin + 10]) == expected[begin : begin + 10]
        assert encoder.used_bytes < 1_500_000


def test_text_without_spaces_is_not_remembered(wide):
    encoder = CorpusEncoder(wide)
    text = "中文baker." * LONG_CHUNK
    assert split(encoder, [text]) == library(wide, [text])
    assert text not in encoder._numbering._long


def test_half_of_a_surrogate_pair_is_refused(wide):
    with pytest.raises(InputError, match="half of a surrogate pair"):
        CorpusEncoder(wide).encode(["fine", "a\ud800"])
