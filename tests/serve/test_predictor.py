from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exports import bundle_of, exported
from support.stories import stories

import bertkit
from bertkit.errors import ArtifactError, InputError
from bertkit.model.device import find_device
from bertkit.serve import predictor
from bertkit.serve.predictor import word_spans
from bertkit.text.tokenizer import SPECIALS, Tokenizer

WORDS = ["mara", "is", "a", "baker", "in", "elmford", ",", "and", "every", "morning", "she", "kneads", "the", "dough", "."]
sentences = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60).map(" ".join), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def still(tokenizer):
    """A model that no test changes."""
    return bertkit.create("tiny", tokenizer, seed=1, positions=64)


def test_fill_gives_the_likeliest_pieces_of_each_mask(still):
    one = still.fill("mara is a [MASK] .", top=3)
    assert [len(candidates) for candidates in one] == [3]
    assert one[0][0].probability >= one[0][1].probability
    two, three = still.fill(["[MASK] [MASK]", "a [MASK] b [MASK] c [MASK]"], top=2)
    assert (len(two), len(three)) == (2, 3)
    whole = still.fill("mara is a [MASK] .", top=still.config.vocabulary)[0]
    assert sum(candidate.probability for candidate in whole) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_masks_are_filled_a_few_at_a_time(graph, tmp_path, monkeypatch):
    """Each is scored for the whole vocabulary: all of a batch would take gigabytes."""
    model = bertkit.Model(exported(bundle_of(), tmp_path / "m") if graph else bundle_of(), device="cpu")
    sizes, softmax = [], predictor.softmax
    monkeypatch.setattr(predictor, "softmax", lambda logits: sizes.append(len(logits)) or softmax(logits))
    texts = ["[MASK] [MASK] the [MASK]", "[MASK]", "the cat [MASK] [MASK] [MASK]"]
    expected = model.fill(texts)
    monkeypatch.setattr(predictor, "SCORES", 2 * model.config.vocabulary)
    again = model.fill(texts)
    assert sizes == [7, 2, 2, 2, 1]
    assert [[[one.piece for one in few] for few in text] for text in again] == [
        [[one.piece for one in few] for few in text] for text in expected
    ]


def test_fill_equals_transformers(still, tmp_path):
    transformers = pytest.importorskip("transformers")
    still.save(tmp_path / "m")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "m").eval()
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("Mara is a [MASK].", return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**ids).prediction_logits[0]
    place = int((ids["input_ids"][0] == still.tokenizer.mask).nonzero())
    chances, best = logits[place].softmax(-1).topk(5)
    found = still.fill("Mara is a [MASK].")[0]
    assert [candidate.piece for candidate in found] == [still.tokenizer.vocabulary[i] for i in best]
    np.testing.assert_allclose([candidate.probability for candidate in found], chances, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(texts=sentences)
def test_an_answer_does_not_depend_on_its_batch_mates(still, texts):
    together = still.embed(texts)
    for index, text in enumerate(texts):
        np.testing.assert_allclose(together[index], still.embed([text])[0], atol=1e-5)


def test_many_texts_keep_their_order(still):
    texts = [line for story in stories(40) for line in story.split("\n")]
    vectors = still.embed(texts)
    assert vectors.shape == (len(texts), 128)
    assert vectors.dtype == np.float32
    for index in range(0, len(texts), 37):
        np.testing.assert_allclose(vectors[index], still.embed([texts[index]])[0], atol=1e-5)


def test_embed_pools_and_normalises(still):
    text = "mara is a baker ."
    hidden = still.encode([still.tokenizer.encode(text).ids])[0]
    np.testing.assert_allclose(still.embed([text])[0], hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(still.embed([text], pooling="cls")[0], hidden[0], atol=1e-6)
    assert np.linalg.norm(still.embed([text], normalize=True)) == pytest.approx(1)


def test_features_give_chosen_layers(still):
    first, second = still.features(["mara is", "a baker in elmford"], layers=[0, -1])
    assert first.pieces == ["[CLS]", "mara", "is", "[SEP]"]
    assert first.vectors.shape == (2, 4, 128)
    np.testing.assert_allclose(
        second.vectors[1], still.encode([still.tokenizer.encode("a baker in elmford").ids])[0], atol=1e-5
    )


def test_next_is_a_probability(still):
    chance = still.next("mara is a baker .", "she kneads the dough .")
    assert 0 < chance < 1
    assert isinstance(chance, float)
    many = still.next(["a", "mara is"], ["b", "a baker"])
    assert many.shape == (2,)


def test_compiled_answers_are_the_same(still, tokenizer):
    compiled = bertkit.Model(still.bundle, device="cpu", compile=True, budget=256)
    seen = set()  # the shapes are what is tested here; compilation is tested elsewhere

    def encoder(batch, wanted=None):
        seen.add((len(batch.ids), len(batch.boundaries), wanted is None or len(wanted) == len(batch.firsts)))
        return still.network.encoder(batch, wanted)

    compiled.runner.encoder = encoder
    texts = ["mara is a baker .", "a " * 40, "mara"]
    np.testing.assert_allclose(compiled.embed(texts), still.embed(texts), atol=1e-5)
    texts = ["mara is a [MASK] .", "a [MASK] " * 20, "[MASK]"]
    for mine, theirs in zip(compiled.fill(texts), still.fill(texts), strict=True):
        assert [[c.piece for c in mask] for mask in mine] == [[c.piece for c in mask] for mask in theirs]
    assert all(fixed for *_, fixed in seen) and {size for size, *_ in seen} == {256}


LONG = "mara " * 63
BAD = [
    (lambda m: m.embed([LONG]), "text 1 has 65 pieces; this model takes 1 to 64; shorten it"),
    (lambda m: m.embed(["a", ""]), "text 2 is empty"),
    (lambda m: m.embed([" \t\u200b"]), "text 1 is empty"),
    (lambda m: m.embed("a"), "expected a list of texts, found one string"),
    (lambda m: m.embed(["a"], pooling="min"), "pooling is 'min'"),
    (lambda m: m.fill("no mask here"), r"no \[MASK\] in 'no mask here'"),
    (lambda m: m.fill(f"{LONG} [MASK]"), "has 66 pieces"),
    (lambda m: m.fill("[MASK]", top=0), "top is 0"),
    (lambda m: m.features(["a"], layers=[3]), "no layer 3; expected 0"),
    (lambda m: m.next("a", LONG), "pieces"),
    (lambda m: m.next(["a"], ["b", "c"]), "1 texts cannot pair with 2"),
    (lambda m: m.next(["a", "b"], None), "2 texts cannot pair with 0"),
    (lambda m: m.next("a", ""), "text 1 is empty"),
    (lambda m: m.features(["a"], layers=[]), "no layer at all; expected 0"),
    (lambda m: m.encode([[1, 2, 9999]]), "sequence 1 holds id 9999"),
    (lambda m: m.encode([[1] * 65]), "sequence 1 has 65 pieces"),
    (lambda m: m.encode([[]]), "sequence 1 has 0 pieces"),
    (lambda m: find_device("gpu!"), "no device 'gpu!'"),
    (lambda m: find_device("cuda:99"), "is not here"),
    (lambda m: bertkit.Model(m.bundle, precision="int3"), "precision is 'int3'"),
]


@pytest.mark.parametrize(("ask", "message"), BAD)
def test_bad_questions_get_one_clear_line(still, ask, message):
    with pytest.raises(InputError, match=message) as caught:
        ask(still)
    assert "\n" not in str(caught.value)


def test_truncation_is_a_choice(still):
    assert still.embed([LONG], truncate=True).shape == (1, 128)
    assert 0 < still.next(LONG, LONG, truncate=True) < 1


def test_an_encoder_without_heads_says_so(model):
    model.network.masked = model.network.next = None
    assert model.answers() == ["embed", "features"]
    with pytest.raises(ArtifactError, match="no masked-language head"):
        model.fill("[MASK]")
    with pytest.raises(ArtifactError, match="no next-sentence head"):
        model.next("a", "b")


def test_nothing_in_nothing_out(still):
    assert still.fill([]) == []
    assert still.embed([]).shape == (0, 128)
    assert still.features([]) == []
    assert still.next([], []).shape == (0,)


def test_describe_counts_parameters_by_part(still):
    facts = still.describe()
    assert facts["parameters"]["total"] == sum(p.numel() for p in still.network.parameters())
    assert facts["vocabulary"] == {"pieces": len(still.tokenizer), "cased": False, "max_word": 100}


def test_real_sentences_embed_as_sentence_transformers_does(minilm):
    peers = pytest.importorskip("sentence_transformers")
    texts = ["A man is eating food.", "A girl is carrying a baby.", "x"]
    expected = peers.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    np.testing.assert_allclose(bertkit.load(minilm).embed(texts, normalize=True), expected, atol=1e-5)


def test_attention_is_told_piece_by_piece(model):
    texts = ["Mara kneads the dough.", "It is winter."]
    for text, found in zip(texts, model.attention(texts), strict=True):
        size = len(model.tokenizer.encode(text).ids)
        assert len(found.pieces) == size and found.pieces[0] == "[CLS]"
        assert found.weights.shape == (model.config.layers, model.config.heads, size, size)
        np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_words_end_behind_their_last_mark(still):
    text = "mara\u0301 is a bake\u0301r\u0302."
    (pieces,) = still.tokenizer.pieces([text])
    assert [text[begin:end] for begin, end in word_spans(pieces, text)] == [
        "mara\u0301",
        "is",
        "a",
        "bake\u0301r\u0302",
        ".",
    ]


@pytest.mark.parametrize("text", ["मैं दिल्ली में हूँ", "ba ❤️ ma", "cafe\u0301 नि"])
def test_vowel_signs_and_variants_belong_to_their_words(still, text):
    letters = sorted({character for character in text if not character.isspace()})
    pieces = [piece for letter in letters for piece in (letter, f"##{letter}")]
    (found,) = Tokenizer.from_vocabulary([*SPECIALS, *pieces], cased=False).pieces([text])
    assert [text[begin:end] for begin, end in word_spans(found, text)] == text.split()


TUNED = [
    ("classification", lambda m: m.classify([None]), "text 1 is None, no text"),
    ("classification", lambda m: m.classify(["a", "b"], "cd"), "2 texts cannot pair with a single text"),
    ("classification", lambda m: m.classify(["a", "b"], np.array([["c", "d"]] * 3)), "2 texts cannot pair with 3"),
    ("qa", lambda m: m.ask(["a", "b"], ["c"]), "2 texts cannot pair with 1"),
    ("qa", lambda m: m.ask("a", ["b", "c"]), "no text"),
    ("choice", lambda m: m.choose("a", []), "expected a list of texts"),
    ("choice", lambda m: m.choose("a", "bc"), "expected a list of texts"),
]


@pytest.mark.parametrize(("name", "ask", "message"), TUNED)
def test_bad_questions_to_tuned_models(name, ask, message):
    with pytest.raises(InputError, match=message):
        ask(bertkit.Model(bundle_of("bert", name), device="cpu"))


@pytest.mark.parametrize(("name", "verb"), [("classification", "classify"), ("tagging", "tag")])
def test_texts_may_come_one_by_one(name, verb):
    ask = getattr(bertkit.Model(bundle_of("bert", name), device="cpu"), verb)
    assert ask(text for text in ["the cat", "the dog"]) == ask(["the cat", "the dog"])


def test_texts_are_cut_where_the_model_was_tuned_to():
    bundle = bundle_of("bert", "similarity")
    bundle.task = type(bundle.task)(replace(bundle.task.settings, max_length=6))
    model = bertkit.Model(bundle, device="cpu")
    long = "the cat went to the river and the house ."
    found, expected = model.embed([long], truncate=True), model.embed(["the cat went to"])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(InputError, match="text 1 has 12 pieces; this model takes 1 to 6; shorten it, or let it be cut"):
        model.embed([long])
