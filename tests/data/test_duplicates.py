from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.duplicates import duplicate_documents


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.sampled_from("ab \n"), max_size=4), max_size=60))
def test_the_first_stays(tmp_path_factory, texts):
    seen, expected = set(), set()
    for number, text in enumerate(texts):
        words = " ".join(text.split())
        if words in seen:
            expected.add(number)
        seen.add(words)
    scratch = tmp_path_factory.getbasetemp()
    assert duplicate_documents(texts, scratch) == expected
    assert not list(scratch.glob(".hashes.*"))
