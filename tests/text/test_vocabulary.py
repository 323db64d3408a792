import pytest
from support.stories import stories

from bertkit.errors import InputError
from bertkit.text.corpus import Corpus
from bertkit.text.tokenizer import SPECIALS
from bertkit.text.vocabulary import KINDS, Counts, learn_vocabulary


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(stories(200)))
    return Corpus([tmp_path])


def test_it_learns_the_frequent_words(corpus):
    learned = learn_vocabulary(corpus, 500)
    assert learned.tokenizer.vocabulary[:5] == list(SPECIALS)
    assert {"the", "bakery", "elmford", "##s"} <= set(learned.tokenizer.vocabulary)
    assert learned.documents == 200
    assert len(learned.tokenizer) <= 500
    ids = learned.tokenizer.encode("Mara kneads the dough.").ids
    assert learned.tokenizer.unk not in ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_corpus_gives_the_same_tokenizer(corpus, kind):
    contents = {learn_vocabulary(corpus, 300, kind=kind).tokenizer.content for _ in range(5)}
    assert len(contents) == 1


@pytest.mark.parametrize(("kind", "mark"), [("wordpiece", ""), ("bpe", "Ġ"), ("unigram", "▁")])
def test_cased_keeps_capitals(corpus, kind, mark):
    tokenizer = learn_vocabulary(corpus, 800, kind=kind, cased=True).tokenizer
    assert f"{mark}Elmford" in tokenizer.vocabulary
    assert f"{mark}elmford" not in tokenizer.vocabulary
    assert tokenizer.cased


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_special_pieces_and_spells_its_corpus(corpus, kind):
    tokenizer = learn_vocabulary(corpus, 400, kind=kind).tokenizer
    assert tokenizer.kind == kind
    assert tuple(tokenizer.vocabulary[:5]) == KINDS[kind]
    assert len(tokenizer) <= 400
    assert tokenizer.cased == (kind == "bpe")
    for text in stories(20):
        assert tokenizer.unk not in tokenizer.encode(text).ids
        assert len(tokenizer.encode(text)) < 3 * len(text.split())


def test_other_kinds_are_refused_by_name(corpus):
    with pytest.raises(InputError, match="kind is 'char'; expected one of wordpiece, bpe, unigram"):
        learn_vocabulary(corpus, 300, kind="char")


def test_a_full_table_drops_rare_chunks_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.text.vocabulary.MAX_CHUNKS", 1000)
    lines = [f"often frequent word{i} rare{i}" for i in range(5000)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    learned = learn_vocabulary(Corpus([tmp_path]), 200)
    assert learned.pruned > 8000
    assert 0 < learned.shortfall < 50
    assert {"often", "frequent"} <= set(learned.tokenizer.vocabulary)


def test_counts_are_low_by_at_most_the_shortfall():
    counts = Counts(limit=50)
    for i in range(2000):
        counts.add(f"steady w{i % 120} x{i}")
    assert len(counts.table) <= 53
    assert 2000 - counts.shortfall <= counts.table["steady"] <= 2000


def test_overlong_words_are_counted_out(tmp_path):
    (tmp_path / "a.txt").write_text("short words here " + "x" * 200)
    assert learn_vocabulary(Corpus([tmp_path]), 50).too_long == 1


def test_there_must_be_words_and_room(corpus, tmp_path):
    for kind in KINDS:
        with pytest.raises(InputError, match="no room beside"):
            learn_vocabulary(corpus, 20, kind=kind)
    (tmp_path / "b.txt").write_text("\0")  # which would be told if it was read
    with pytest.raises(InputError, match="expected 5,000,000 at most"):
        learn_vocabulary(Corpus([tmp_path / "b.txt"]), 10**12)
    (tmp_path / "a.txt").write_text("\x01 \x02")
    with pytest.raises(InputError, match="holds no words"):
        learn_vocabulary(Corpus([tmp_path / "a.txt"]), 100)


def test_text_of_many_characters_keeps_them(tmp_path):
    (tmp_path / "a.txt").write_text(" ".join(chr(0x4E00 + i) * 3 for i in range(3000)))
    assert {chr(0x4E00), chr(0x4E00 + 2999)} <= set(learn_vocabulary(Corpus([tmp_path]), 9100).tokenizer.vocabulary)
    few = learn_vocabulary(Corpus([tmp_path]), 4500).tokenizer.vocabulary
    assert chr(0x4E00 + 1499) in few and chr(0x4E00 + 1500) not in few


def test_ideographs_are_counted_each_by_itself(tmp_path, monkeypatch):
    """Without blanks a sentence is one chunk, which hardly returns: those of the first documents would all be dropped."""
    monkeypatch.setattr("bertkit.text.vocabulary.MAX_CHUNKS", 100)
    signs = [chr(0x4E00 + i) for i in range(60)]
    lines = ["".join(signs[i : i + 30]) + signs[j] for i in (0, 30) for j in range(60)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines * 2))
    learned = learn_vocabulary(Corpus([tmp_path]), 200)
    assert learned.pruned == 0 and set(signs) <= set(learned.tokenizer.vocabulary)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_without_blanks_is_learned_from_in_parts(tmp_path, kind):
    (tmp_path / "a.txt").write_text("ฉันรักแมว" * 300)
    learned = learn_vocabulary(Corpus([tmp_path]), 300, kind=kind, cased=True)
    assert learned.too_long == 0 and learned.words > 1
    assert learned.tokenizer.unk not in learned.tokenizer.encode("ฉันรักแมว").ids
