"""Every member of the family against transformers' own tokenizer, on vocabularies learned here and on published ones."""

import json
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest
import tokenizers
from support.nasty import nasty
from support.protobuf_writer import write_sentencepiece
from support.stories import stories

from bertkit.errors import ArtifactError, InputError
from bertkit.text.corpus import Corpus
from bertkit.text.memo import CorpusEncoder
from bertkit.text.sentencepiece import read_sentencepiece
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import learn_vocabulary

transformers = pytest.importorskip("transformers")
MEMBERS = ("roberta", "modernbert", "albert", "deberta", "xlm_roberta")
TEXTS = [*stories(20), *nasty(1500, seed=3)]
TEXTS += [text.replace("[SEP]", "</s>").replace("[MASK]", "<mask>") for text in TEXTS if "[" in text]
TEXTS += ["``quoted''", "in 1,000, or 7,", " leading", "trailing ", "a\n\nb", "<unk><pad><s>", "  ", ""]


class Member(NamedTuple):
    ours: Tokenizer
    theirs: object


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A byte-level BPE and a Unigram that knows most nasty characters, as the settings of their models."""
    folder = tmp_path_factory.mktemp("learned")
    texts = [text for text in [*stories(200), *nasty(600, seed=9), "in 1, 2, 3, or 7," * 20] if "\0" not in text]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    contents = (learn_vocabulary(Corpus([folder]), 1500, kind=kind).tokenizer.content for kind in ("bpe", "unigram"))
    return [json.loads(content)["model"] for content in contents]


@pytest.fixture(scope="module", params=MEMBERS)
def member(request, learned, tmp_path_factory) -> Member:
    return globals()[request.param](*learned, tmp_path_factory.mktemp(request.param))


def roberta(bpe: dict, unigram: dict, folder: Path) -> Member:
    """From vocab.json and merges.txt."""
    (folder / "vocab.json").write_text(json.dumps(bpe["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in bpe["merges"])]))
    return Member(Tokenizer.load(folder), roberta_reference(folder))


def roberta_reference(folder: Path):
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)  # as in the published tokenizer.json
    files = dict(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    return transformers.RobertaTokenizer(**files, mask_token=mask)


def modernbert(bpe: dict, unigram: dict, folder: Path) -> Member:
    """From tokenizer.json; the special pieces lie behind the vocabulary, among pieces of spaces."""
    special = {name for name in bpe["vocab"] if name.startswith("<") and len(name) > 1}
    pieces = {name: index for index, name in enumerate(name for name in bpe["vocab"] if name not in special)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [tuple(pair) for pair in bpe["merges"]]))
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken("   ", normalized=True)])
    names = dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]")
    backend.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == "[MASK]") for name in names.values()])
    ids = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    frames = dict(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1")
    backend.post_processor = tokenizers.processors.TemplateProcessing(**frames, special_tokens=ids)
    backend.save(str(folder / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)
    return Member(Tokenizer.load(folder), theirs)


def albert(bpe: dict, unigram: dict, folder: Path) -> Member:
    """From spiece.model."""
    write_sentencepiece(folder / "spiece.model", unigram["vocab"], unigram["unk_id"])
    return Member(Tokenizer.load(folder), albert_reference(folder / "spiece.model"))


def albert_reference(file: Path):
    """transformers' converter takes 100 from the score of pieces that join a number and a comma."""
    from transformers.convert_slow_tokenizer import check_number_comma as check

    known, _, charsmap = read_sentencepiece(file)
    pieces = [(piece, score if check(piece) else score - 100) for piece, score in known]
    return transformers.AlbertTokenizer(vocab=pieces, _spm_precompiled_charsmap=charsmap or None)


def deberta(bpe: dict, unigram: dict, folder: Path) -> Member:
    """From spm.model, which ends before [MASK]."""
    special = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    write_sentencepiece(folder / "spm.model", [*special, *unigram["vocab"][5:]], 3)
    theirs = transformers.DebertaV2Tokenizer(vocab=read_sentencepiece(folder / "spm.model")[0])
    return Member(Tokenizer.load(folder), theirs)


def xlm_roberta(bpe: dict, unigram: dict, folder: Path) -> Member:
    """From the tokenizer.json that transformers saves; cased Unigram pieces in RoBERTa's frame."""
    first = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces = [*first, *((piece, score) for piece, score in unigram["vocab"][5:]), ("<mask>", 0.0)]
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    theirs = transformers.XLMRobertaTokenizer(vocab=pieces, mask_token=mask)
    theirs.save_pretrained(folder)
    return Member(Tokenizer.load(folder), theirs)


def plain(ours: Tokenizer, texts: list[str]) -> list[str]:
    """Where transformers takes special pieces in a text as text, Unigram finds them all the same; ours does not."""
    names = () if ours.kind == "bpe" else ours.specials.values()
    return [text for text in texts if not any(name in text for name in names)]


def assert_same_ids(ours: Tokenizer, theirs, texts: list[str]) -> None:
    texts = plain(ours, texts)
    expected = theirs(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    row, bounds = CorpusEncoder(ours).encode(texts)
    for index, (found, wanted) in enumerate(zip(ours.pieces(texts), expected, strict=True)):
        assert found.ids.tolist() == wanted, repr(texts[index])
        assert row[bounds[index] : bounds[index + 1]].tolist() == wanted, repr(texts[index])


def test_nasty_strings_give_transformers_ids(member):
    assert_same_ids(*member, TEXTS)


def test_a_saved_folder_reads_to_the_same_ids(member, tmp_path):
    member.ours.save(tmp_path / "t")
    again = Tokenizer.load(tmp_path / "t")
    assert again.content == member.ours.content
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    assert len(again) == len(theirs) == len(member.theirs)
    assert_same_ids(again, theirs, TEXTS[::3])
    for model in "roberta xlm-roberta longformer modernbert albert deberta-v2".split():  # which a model's folder names too
        (tmp_path / "t" / "config.json").write_text(json.dumps({"model_type": model}))
        assert_same_ids(again, transformers.AutoTokenizer.from_pretrained(tmp_path / "t"), TEXTS[::9])
    for role, name in member.ours.specials.items():
        assert getattr(theirs, f"{role}_token") == name
        assert getattr(theirs, f"{role}_token_id") == getattr(member.ours, role) == getattr(again, role)


def test_special_pieces_spelled_out_are_text_in_every_process(member):
    for ours in (member.ours, pickle.loads(pickle.dumps(member.ours))):
        special = {ours.pad, ours.cls, ours.sep, ours.mask}
        spelled = [f"a{name}b {name}" for names in ours.specials.values() for name in (names, names.lower())]
        assert not any(special & set(pieces.ids.tolist()) for pieces in ours.pieces([*TEXTS, *spelled]))
        assert len(ours.pieces([ours.specials["unk"]])[0]) > 1
        assert not any(special & set(ids) for ids in ours.ids(spelled))


def test_pairs_are_joined_and_cut_as_transformers_does(member):
    ours, theirs = member
    for a, b, room in [(9, 3, 8), (3, 9, 8), (9, 9, 9), (10, 9, 9), (1, 20, 10), (20, 1, 10), (2, 2, 50)]:
        texts = " ".join("a" * a), " ".join("b" * b)
        expected = theirs(*texts, truncation="longest_first", max_length=room)["input_ids"]
        encoding = ours.encode(*texts, max_length=room)
        assert encoding.ids.tolist() == expected, (a, b, room)
        assert len(encoding.offsets) == len(encoding.starts) == len(encoding.segments) == len(encoding)
        assert encoding.segments.sum() == encoding.starts[encoding.segments == 1].sum() + ours.between
        assert encoding.dropped == len(ours.encode(*texts)) - len(encoding)
    assert ours.encode("a b").ids.tolist() == theirs("a b")["input_ids"]
    with pytest.raises(InputError, match=f"no room beside {2 + ours.between} special"):
        ours.encode("a", "b", max_length=2)


def test_only_roberta_doubles_its_separator(member):
    assert member.ours.between == (2 if member.ours.specials["cls"] == "<s>" else 1)


def test_the_mask_is_read_in_both_spellings(member):
    ours, theirs = member
    name = ours.specials["mask"]
    expected = theirs(f"Mara is a {name} in Ashby. {name}")["input_ids"]
    for text in (f"Mara is a {name} in Ashby. {name}", "Mara is a [MASK] in Ashby. [MASK]"):
        encoding = ours.encode_batch([text], read_mask=True)[0]
        assert encoding.ids.tolist() == expected
        spans = encoding.offsets[encoding.ids == ours.mask]
        assert [text[begin:end] for begin, end in spans] == [text[10:16]] * 2
        assert encoding.starts[encoding.ids == ours.mask].all()
    cls = ours.specials["cls"]
    assert ours.pieces([f"a {cls} [MASK]"], read_mask=True)[0].ids.tolist().count(ours.cls) == 0
    with pytest.raises(InputError, match="int at index 0"):
        ours.pieces([3], read_mask=True)


def test_places_are_those_of_the_text_without_white_space(member):
    text = "  Mara  kneads 中文 the\u3000dough .\n "
    pieces = member.ours.pieces([text])[0]
    for begin, end in pieces.offsets:
        assert text[begin:end] == text[begin:end].strip()
    begins = pieces.offsets[pieces.starts, 0].tolist()
    words = ["Mara", "kneads", "中文", "the", "dough", "."]
    assert begins == [text.index(word) for word in words if word != "dough" or text.index("dough") in begins]
    last = [*(place - 1 for place in pieces.starts.nonzero()[0][1:]), len(pieces) - 1]
    assert [pieces.offsets[place, 1] for place in last][:3] == [6, 14, 17], "the end of a word is not behind its space"


def test_decoding_gives_the_text_back(member):
    ours, text = member.ours, "mara kneads the dough."
    assert ours.decode(ours.encode(text).ids).strip() == text
    assert ours.specials["cls"] in ours.decode(ours.encode(text).ids, skip_specials=False)


def test_pieces_tell_whether_they_begin_a_word(member, tokenizer):
    for ours in (member.ours, tokenizer):
        pieces = ours.pieces([" Mara kneads the dough"])[0]
        assert ours.begins_word[pieces.ids].tolist() == pieces.starts.tolist()


def test_what_a_tokenizer_knows_of_itself(member):
    ours = member.ours
    assert ours.cased == ((ours.specials["pad"], ours.specials["cls"]) != ("<pad>", "[CLS]")), "only ALBERT is uncased"
    assert ours.max_word is None
    assert ours.kind in ("bpe", "unigram")


def test_casing_is_as_the_folder_or_the_caller_says(learned, tmp_path):
    folder = tmp_path
    albert(*learned, folder)
    assert Tokenizer.load(folder, cased=True).cased
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    cased = Tokenizer.load(folder)
    assert cased.cased
    pieces = albert_reference(folder / "spiece.model")._vocab_scores
    assert_same_ids(cased, transformers.AlbertTokenizer(pieces, do_lower_case=False, keep_accents=True), TEXTS[::5])
    for content, complaint in (("{", "not readable as JSON"), ("[]", "expected a JSON object")):
        (folder / "tokenizer_config.json").write_text(content)
        with pytest.raises(ArtifactError, match=f"tokenizer_config.json: {complaint}"):
            Tokenizer.load(folder)


def test_files_that_cannot_be_used_are_named(learned, tmp_path):
    roberta(*learned, tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ArtifactError, match=r"vocab\.json: not a tokenizer file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text('{"a": 0, "<s>": 1}')
    with pytest.raises(ArtifactError, match=r"has no \[PAD\] or <pad>, no \[UNK\] or <unk>, no \[SEP\] or </s>, no"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "spm.model").write_bytes(b"junk")
    with pytest.raises(ArtifactError, match=r"spm\.model: no SentencePiece model"):
        Tokenizer.load(tmp_path)
    write_sentencepiece(tmp_path / "spm.model", learned[1]["vocab"], 1, charsmap=b"junk")
    with pytest.raises(ArtifactError, match=r"spm\.model: not a tokenizer file"):
        Tokenizer.load(tmp_path)


def test_marks_and_frame_are_added_where_a_file_has_none(learned):
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([tuple(one) for one in learned[1]["vocab"]], 1))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    ours = Tokenizer(backend)
    assert ours.encode("a", "b").ids[[0, -1]].tolist() == [ours.cls, ours.sep]
    assert (ours.encode_batch(["[MASK]"], read_mask=True)[0].ids == ours.mask).sum() == 1


@pytest.mark.parametrize(
    ("name", "size", "reference"),
    [
        ("roberta-base", 50_265, roberta_reference),
        ("albert-base", 30_000, lambda folder: albert_reference(folder / "spiece.model")),
    ],
)
def test_published_vocabularies_give_transformers_ids(data, name, size, reference):
    folder = data / "weights" / "vocabs" / name
    ours, theirs = Tokenizer.load(folder), reference(folder)
    assert len(ours) == len(theirs) == size
    lines = [
        line
        for document in Corpus([data / "corpus" / "presidential-speeches.jsonl.xz"])
        for line in document.text.split("\n")
    ]
    assert_same_ids(ours, theirs, lines[:5000])
    assert_same_ids(ours, theirs, [*TEXTS, *nasty(10_000)])


def test_another_frame_is_refused(learned):
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([tuple(one) for one in learned[1]["vocab"]], 1))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", 3)]
    )
    with pytest.raises(ArtifactError, match=r"frames a pair with \[SEP\] \[SEP\]; expected \[CLS\] A"):
        Tokenizer(backend)


def test_a_vocabulary_without_special_pieces_is_refused(data):
    with pytest.raises(ArtifactError, match=r"the vocabulary of 50,257 pieces has no \[PAD\] or <pad>"):
        Tokenizer.load(data / "weights" / "vocabs" / "gpt2")


def test_a_config_puts_a_blank_before_bytes(learned, tmp_path):
    _, plain = roberta(*learned, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("the dough").ids.tolist() == plain(" the dough")["input_ids"]
    assert_same_ids(ours, transformers.AutoTokenizer.from_pretrained(tmp_path, tokenizer_type="roberta"), TEXTS[::9])


def test_pieces_read_as_text(learned, tmp_path):
    for kind, mark in ((roberta, "Ġ"), (albert, "▁")):
        (tmp_path / mark).mkdir()
        ours = kind(*learned, tmp_path / mark).ours
        assert ours.texts[ours.vocabulary.index(f"{mark}the")] == " the"
        assert ours.texts[ours.vocabulary.index(".")] == "."
