import pytest

from bertkit.errors import InputError
from bertkit.stories import stories
from bertkit.text.corpus import Corpus
from bertkit.text.tokenizer import SPECIALS
from bertkit.text.vocabulary import Counts, learn_vocabulary


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


def test_the_same_corpus_gives_the_same_vocabulary(corpus):
    vocabularies = [learn_vocabulary(corpus, 300).tokenizer.vocabulary for _ in range(5)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)


def test_cased_keeps_capitals(corpus):
    vocabulary = learn_vocabulary(corpus, 500, cased=True).tokenizer.vocabulary
    assert "Elmford" in vocabulary
    assert "elmford" not in vocabulary


def test_a_full_table_drops_rare_chunks_and_says_so(tmp_path):
    lines = [f"often frequent word{i} rare{i}" for i in range(5000)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    learned = learn_vocabulary(Corpus([tmp_path]), 200, max_chunks=1000)
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
    with pytest.raises(InputError, match="no room beside"):
        learn_vocabulary(corpus, 5)
    (tmp_path / "a.txt").write_text("\x01 \x02")
    with pytest.raises(InputError, match="holds no words"):
        learn_vocabulary(Corpus([tmp_path / "a.txt"]), 100)
