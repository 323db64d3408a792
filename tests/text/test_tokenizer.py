import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nasty import nasty

from bertkit.errors import ArtifactError, InputError
from bertkit.text.corpus import Corpus
from bertkit.text.memo import CorpusEncoder
from bertkit.text.tokenizer import SPECIALS, Tokenizer, longest_first


def pieces(tokenizer, text, **options):
    return [tokenizer.vocabulary[index] for index in tokenizer.encode_batch([text], **options)[0].ids]


def test_a_text_becomes_pieces_between_cls_and_sep(tokenizer):
    assert pieces(tokenizer, "Mara is a baker.") == ["[CLS]", "mara", "is", "a", "baker", ".", "[SEP]"]


def test_special_pieces_spelled_out_are_text(tokenizer):
    assert "[SEP]" not in pieces(tokenizer, "a [SEP] b [MASK]")[1:-1]


def test_mask_is_read_only_when_asked(tokenizer):
    assert "[MASK]" in pieces(tokenizer, "a [MASK] [SEP]", read_mask=True)
    assert pieces(tokenizer, "a [MASK] [SEP]", read_mask=True).count("[SEP]") == 1


def test_pairs_have_segments(tokenizer):
    encoding = tokenizer.encode("mara is", "a baker .")
    assert [tokenizer.vocabulary[i] for i in encoding.ids] == ["[CLS]", "mara", "is", "[SEP]", "a", "baker", ".", "[SEP]"]
    assert encoding.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_offsets_point_into_the_original(tokenizer):
    text = "  MARA\u200b isn't  à Baker."
    encoding = tokenizer.encode(text)
    spans = [text[begin:end] for begin, end in encoding.offsets[1:-1]]
    assert spans[0].startswith("MARA")
    assert spans[-2:] == ["Baker", "."]
    assert encoding.offsets[0].tolist() == encoding.offsets[-1].tolist() == [0, 0]


def test_starts_mark_the_first_piece_of_each_word(tokenizer):
    encoding = tokenizer.encode("mara xyz.")
    assert [tokenizer.vocabulary[i] for i in encoding.ids] == ["[CLS]", "mara", "x", "##y", "##z", ".", "[SEP]"]
    assert encoding.starts.tolist() == [False, True, True, False, False, True, False]


def test_words_over_the_longest_length_are_unknown(tokenizer):
    assert pieces(tokenizer, "a" * 101) == ["[CLS]", "[UNK]", "[SEP]"]
    assert len(pieces(tokenizer, "a" * 100)) == 102
    longer = Tokenizer.from_vocabulary(tokenizer.vocabulary, cased=False, max_word=200)
    assert len(pieces(longer, "a" * 101)) == 103


def test_decode_joins_pieces(tokenizer):
    assert tokenizer.decode(tokenizer.encode("Mara, xyz!").ids).startswith("mara, xyz")
    assert "[CLS]" in tokenizer.decode(tokenizer.encode("a").ids, skip_specials=False)
    with pytest.raises(InputError, match="outside the vocabulary"):
        tokenizer.decode([len(tokenizer)])


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_longest_first_takes_from_the_longer(a, b, room):
    keep_a, keep_b = longest_first(a, b, room)
    assert keep_a + keep_b == min(a + b, room)
    assert keep_a <= a
    assert keep_b <= b
    if keep_a < a and keep_b < b:
        assert abs(keep_a - keep_b) <= 1
    elif keep_a < a:
        assert keep_a >= keep_b - 1
    elif keep_b < b:
        assert keep_b >= keep_a - 1


def test_truncation_counts_what_it_drops(tokenizer):
    encoding = tokenizer.encode("a b c d e f", "g h", max_length=8)
    assert len(encoding) == 8
    assert encoding.dropped == 3
    with pytest.raises(InputError, match="no room"):
        tokenizer.encode("a", max_length=1)


def test_truncation_is_that_of_transformers(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "t")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    for a, b, room in [(9, 3, 8), (3, 9, 8), (9, 9, 9), (10, 9, 9), (9, 10, 8), (1, 20, 10), (20, 1, 10)]:
        texts = " ".join("a" * a), " ".join("b" * b)
        expected = reference(*texts, truncation="longest_first", max_length=room)["input_ids"]
        assert tokenizer.encode(*texts, max_length=room).ids.tolist() == expected, (a, b, room)


@pytest.mark.parametrize("cased", [False, True])
def test_saved_folder_reads_to_the_same_ids(tokenizer, tmp_path, cased):
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_vocabulary([*tokenizer.vocabulary, *"ABCDEFGÉ"], cased=cased)
    ours.save(tmp_path / "t")
    again = Tokenizer.load(tmp_path / "t")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    assert len(again) == len(theirs) == len(ours)
    assert again.cased == cased
    texts = ["Élan DE Mara", "a [x] B", "中文"]
    for text in texts:
        expected = ours.encode(text).ids.tolist()
        assert again.encode(text).ids.tolist() == expected
        assert theirs(text)["input_ids"] == expected


def test_bare_vocabulary_tells_its_casing_by_its_capitals(tmp_path):
    for words, cased in ((["word", "##s"], False), (["Word", "word"], True)):
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *words]) + "\n")
        assert Tokenizer.load(tmp_path).cased == cased
        assert Tokenizer.load(tmp_path / "vocab.txt", cased=not cased).cased != cased
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert not Tokenizer.load(tmp_path).cased


def test_added_words_are_kept(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "t" / "tokenizer.json"))
    backend.add_tokens(["covid19"])
    grown = Tokenizer(backend)
    assert len(grown) == len(tokenizer) + 1
    ids, _ = CorpusEncoder(grown).encode(["mara covid19, xcovid19y"])
    assert ids.tolist() == grown.pieces(["mara covid19, xcovid19y"])[0].ids.tolist()
    assert ids.tolist().count(len(tokenizer)) == 2


@pytest.mark.parametrize("missing", SPECIALS)
def test_vocabulary_without_a_special_piece_is_refused(tmp_path, missing):
    (tmp_path / "vocab.txt").write_text("\n".join([*(name for name in SPECIALS if name != missing), "word"]))
    with pytest.raises(ArtifactError, match=r"has no \[" + missing[1:-1]):
        Tokenizer.load(tmp_path)


def test_other_tokenizers_are_refused_by_name(tmp_path):
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ArtifactError, match="is BPE with no pre-tokenizer; expected one of WordPiece with BertPreTok"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ArtifactError, match="not a tokenizer file"):
        Tokenizer.load(tmp_path)
    with pytest.raises(ArtifactError, match="no tokenizer here"):
        Tokenizer.load(tmp_path / "nowhere")


def test_what_is_no_text_is_refused(tokenizer):
    for bad in (3, None, "\ud800"):
        with pytest.raises(InputError, match="Unicode strings"):
            tokenizer.pieces(["fine", bad])


def reference_tokenizer(vocabulary, cased):
    """transformers' BERT tokenizer, with special pieces in a text taken as text."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizer(vocab=dict(vocabulary), do_lower_case=not cased, split_special_tokens=True)
    assert len(theirs) == len(vocabulary)
    return theirs


def assert_same_ids(ours, theirs, texts):
    """One by one, by the batch and by the fast corpus path."""
    expected = theirs(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    row, bounds = CorpusEncoder(ours).encode(texts)
    for index, (found, wanted) in enumerate(zip(ours.pieces(texts), expected, strict=True)):
        assert found.ids.tolist() == wanted, repr(texts[index])
        assert row[bounds[index] : bounds[index + 1]].tolist() == wanted, repr(texts[index])
    return row


@pytest.mark.parametrize("cased", [False, True])
def test_nasty_strings_give_transformers_ids(tokenizer, cased):
    characters = sorted({c for text in nasty(300, seed=9) for c in text if c.isprintable() and not c.isspace()})
    pieces = [
        *tokenizer.vocabulary,
        *(c for c in characters if c not in tokenizer.vocabulary),
        *(f"##{c}" for c in characters),
    ]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    ours = Tokenizer.from_vocabulary(vocabulary, cased=cased)
    assert_same_ids(ours, reference_tokenizer(vocabulary, cased), nasty(2000, seed=int(cased)))


@pytest.mark.parametrize(("name", "size"), [("bert-base-uncased", 30_522), ("bert-base-cased", 28_996)])
def test_published_vocabularies_give_transformers_ids(data, name, size):
    ours = Tokenizer.load(data / "weights" / "vocabs" / name)
    vocabulary = {piece: index for index, piece in enumerate(ours.vocabulary)}
    theirs = reference_tokenizer(vocabulary, cased="uncased" not in name)
    assert len(ours) == len(theirs) == size
    assert ours.cased == ("uncased" not in name)
    lines = [line for document in Corpus(corpus_sample(data)) for line in document.text.split("\n")]
    assert len(lines) >= 100_000
    unknown = total = 0
    for begin in range(0, len(lines), 5000):
        ids = assert_same_ids(ours, theirs, lines[begin : begin + 5000])
        unknown, total = unknown + np.count_nonzero(ids == ours.unk), total + len(ids)
    assert unknown < 0.01 * total
    assert_same_ids(ours, theirs, nasty(20_000))


def corpus_sample(data):
    """Files of the real corpus with a little over 100,000 lines between them."""
    return [
        data / "corpus" / name
        for name in ("books-standardebooks.jsonl.xz", "presidential-speeches.jsonl.xz", "openstax-ccby.jsonl.xz")
    ]


def test_a_bare_vocabulary_is_read_with_all_that_its_config_says(tokenizer, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "é", "e", "ab", "中", "a", "##b", "##中", "##c"]))
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    for told, expected in ((config, ["é", "a", "##中"]), ({"do_lower_case": True, "strip_accents": None}, ["e", "a", "中"])):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
        assert pieces(Tokenizer.load(tmp_path), "É a中")[1:-1] == expected


@pytest.mark.parametrize("kind", ["HerbertTokenizer", "GPT2Tokenizer", "BertJapaneseTokenizer", "MPNetTokenizer"])
def test_a_bare_vocabulary_of_another_kind_is_refused(tokenizer, tmp_path, kind):
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.vocabulary))
    for fine in ("BertTokenizerFast", "ElectraTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": fine}))
        assert len(Tokenizer.load(tmp_path)) == len(tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(ArtifactError, match=f"vocab.txt: it does not go with the tokenizer_class {kind}"):
        Tokenizer.load(tmp_path)


def test_added_pieces_that_a_vocabulary_lacks_are_refused(tokenizer, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.vocabulary))
    added = {"added_tokens_decoder": {"4": {"content": "[MASK]"}, "999": {"content": "<x>"}}}
    for name, content in (("tokenizer_config.json", added), ("added_tokens.json", {"[MASK]": 4, "<x>": 999})):
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(ArtifactError, match="it does not go with the added '<x>' of the files beside it"):
            Tokenizer.load(tmp_path)
        (tmp_path / name).unlink()
    assert len(Tokenizer.load(tmp_path)) == len(tokenizer)


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_files_that_contradict_each_other_are_refused(tokenizer, tmp_path, key):
    """transformers follows the config, unless it names the class that takes tokenizer.json as it is."""
    tokenizer.save(tmp_path / "t")
    file = tmp_path / "t" / "tokenizer_config.json"
    file.write_text(json.dumps({"strip_accents": True} | {key: False}))
    with pytest.raises(ArtifactError, match=f"tokenizer.json: it does not go with {key} False of the files beside it"):
        Tokenizer.load(tmp_path / "t")
    for fine in ({"strip_accents": True, "do_lower_case": None}, {key: False, "tokenizer_class": "PreTrainedTokenizerFast"}):
        file.write_text(json.dumps(fine))
        assert Tokenizer.load(tmp_path / "t").content == tokenizer.content


def test_added_pieces_with_white_space_are_refused(tokenizer):
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(tokenizer.content)
    backend.add_tokens(["new york"])
    with pytest.raises(ArtifactError, match="the added piece 'new york' holds white space"):
        Tokenizer(backend)


def test_another_longest_word_is_kept_by_transformers(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_vocabulary(tokenizer.vocabulary, cased=False, max_word=20)
    ours.save(tmp_path / "t")
    assert Tokenizer.load(tmp_path / "t").content == ours.content
    for config in ({}, {"model_type": "bert"}):
        (tmp_path / "t" / "config.json").write_text(json.dumps(config))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
        assert theirs("a" * 30)["input_ids"] == ours.encode("a" * 30).ids.tolist() == [ours.cls, ours.unk, ours.sep]


def test_a_tokenizer_never_replaces_a_model(model, tmp_path):
    model.save(tmp_path / "m")
    with pytest.raises(ArtifactError, match="holds a model, which the tokenizer would replace; give another place"):
        model.tokenizer.save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").exists()


def test_pieces_read_as_text(tokenizer):
    assert {" mara", "x", " x", " ."} <= set(tokenizer.texts) and len(tokenizer.texts) == len(tokenizer)
