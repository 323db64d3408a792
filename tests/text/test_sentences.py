import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stories import stories

from bertkit.text.sentences import split_sentences

CASES = [
    "He came.| She left!| Did it rain?| Yes.",
    'He said: "Come in."| She came.',
    '"Who are you?" he asked.| "Nobody."',
    "Mr. Brown met Dr. May at St. John.| They talked.",
    "David S. Terry and J. R. Smith wrote it.| It sold.",
    "It costs 3.50 dollars.| No. 7 is cheaper, e.g. in Ashby.",
    "The U.S. Government spends.| It lives in the U.S.| The end.",
    "He works at 9 p.m. on Mondays.| He was born in 544 B.C. in Rome.",
    "Smith Inc. Group grew.| It belongs to Smith Inc.| He sold it.",
    "Wait... what?| Wait...| What now?",
    "So it was (as he said.)| Then (and only then) it ended.",
    "It was I.| You know.",
    "第一句。|第二句！|「第三句？」|第四句",
    "In 1861. the text has a flaw",
    "Visit www.example.org today.| Thanks.",
    "He met\u00a0Dr. May.|\u00a0Then?!|\tThey\ttalked.",
    "वह आई।| क्या बारिश हुई?| हाँ॥",
    "هل جاءت؟| نعم؟!| لا.",
    "وہ آئی۔| کیا بارش ہوئی؟| ہاں",
    "Նա եկավ։| «Այո։»| Ոչ։",
    "መጣች።| ዝናብ ነበር።",
]


@pytest.mark.parametrize("marked", CASES)
def test_cases(marked):
    expected = [part.strip() for part in marked.split("|")]
    assert split_sentences(marked.replace("|", "")) == expected


def test_lines_end_sentences():
    assert split_sentences("a heading\nA line. Another\n\n  \nlast") == ["a heading", "A line.", "Another", "last"]


def test_stories_come_apart_as_they_were_made():
    for text in stories(50):
        assert split_sentences(text.replace("\n", " ")) == text.split("\n")


@given(st.text())
def test_nothing_is_lost_but_white_space(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_lines_without_spaces_are_no_slower():
    """Each of these once took minutes."""
    assert len(split_sentences("." * 1_000_000)) == 485
    assert len(split_sentences("Ab.\tCd.\t" * 50_000)) == 100_000


def test_text_without_ends_is_cut_at_blanks():
    text = "word " * 1000 + "x" * 60 + " end" + " word" * 1000
    sentences = split_sentences(text)
    assert " ".join(sentences) == text
    assert [2000 < len(sentence) <= 2065 for sentence in sentences] == [True] * 5 + [False]


def test_text_without_ends_and_blanks_is_cut_too():
    text = "天地玄黃宇宙洪荒" * 10_000
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert max(map(len, sentences)) == 2065
