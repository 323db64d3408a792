"""Cloze patterns: the label whose word fits best, judged against how likely it is anyway."""

import pytest
import torch

import bertkit
from bertkit.asking import _words_of
from bertkit.data.records import Record
from bertkit.errors import ArtifactError, InputError
from bertkit.serve.prompting import Prompt
from bertkit.text.tokenizer import Tokenizer

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film it was great poor the a . long".split()


@pytest.fixture(scope="module")
def model():
    """One that says "great" after "good" and "poor" after "bad", but "poor" a bit more whatever it reads."""
    model = bertkit.create("tiny", Tokenizer.from_vocabulary(WORDS, cased=False), positions=24)
    network = model.network
    network.masked.bias.data[WORDS.index("poor")] = 3.0
    optimizer = torch.optim.Adam(network.encoder.parameters(), lr=1e-3)  # with 3e-3 the last bits decide whether it learns
    from support.batches import pack

    for step in range(120):
        word, told = (("good", "great"), ("bad", "poor"))[step % 2]
        encoding = model.tokenizer.encode_batch([f"a {word} film . it was [MASK] ."], read_mask=True)[0]
        batch = pack([encoding.ids])
        places = (batch.ids == model.tokenizer.mask).nonzero().flatten()
        logits = network.masked_logits(network.encoder(batch, places))
        torch.nn.functional.cross_entropy(logits, torch.tensor([WORDS.index(told)])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


LABELS = {"positive": "great", "negative": "poor"}
PATTERN = "{text} . it was [MASK] ."


def test_it_tells_labels_apart(model):
    answers = Prompt(model, [PATTERN], LABELS).classify(["a good film", "a bad film"])
    assert [answer.label for answer in answers] == ["positive", "negative"]
    assert sum(answers[0].probabilities.values()) == pytest.approx(1)


def test_examples_choose_the_pattern_and_the_usual_likelihoods(model):
    examples = [Record("a good film", label="positive"), Record("a bad film", label="negative")]
    prompt = Prompt(model, ["the [MASK] {text}", PATTERN], LABELS, examples)
    assert prompt.pattern == PATTERN
    assert prompt.right > 0.9


def test_long_texts_are_cut_and_the_pattern_stays(model):
    assert len(Prompt(model, [PATTERN], LABELS).classify(["long " * 50])) == 1


def test_bad_prompts_get_one_clear_line(model):
    with pytest.raises(InputError, match=r"expected \{text\} and one \[MASK\]"):
        Prompt(model, ["it was [MASK]"], LABELS)
    with pytest.raises(InputError, match="two labels at least"):
        Prompt(model, [PATTERN], {"positive": "great"})
    with pytest.raises(InputError, match="expected a word that is one"):
        Prompt(model, [PATTERN], {"positive": "great", "negative": "very poor"})


def test_a_mask_spelled_in_a_text_is_text_whatever_the_model_calls_its_own(tmp_path):
    (tmp_path / "c.txt").write_text("good bad see mask here film it was")
    learned = bertkit.learn_vocabulary([tmp_path / "c.txt"], 270, tmp_path / "t", kind="bpe")
    model = bertkit.create("tiny", learned.tokenizer, family="roberta", layers=1, width=16, heads=2, feedforward=32)
    assert model.tokenizer.specials["mask"] == "<mask>"
    texts = ["good film", "see <mask> here", "see [MASK] here", "bad film"]
    prompt = Prompt(model, ["{text} it was [MASK]"], {"a": "g", "b": "h"})
    each = [prompt.classify([text])[0] for text in texts]
    for one, other in zip(prompt.classify(texts), each, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-5)


def test_it_needs_a_masked_head(model):
    bare = bertkit.create("tiny", Tokenizer.from_vocabulary(WORDS, cased=False), positions=24)
    bare.network.masked = None
    with pytest.raises(ArtifactError, match="no masked-language head"):
        Prompt(bare, [PATTERN], LABELS)


def test_a_pattern_leaves_room_for_the_text(model):
    with pytest.raises(InputError, match="leave no room for a text"):
        Prompt(model, ["long " * 30 + PATTERN], LABELS)
    assert len(Prompt(model, ["{text} . {text} it was [MASK] ."], LABELS).classify(["long " * 50])) == 1


@pytest.mark.parametrize("text", ["a=great,b", "a=great,a=poor", "=great,b=poor", "a=great,b=great"])
def test_each_label_has_a_word_of_its_own(text):
    with pytest.raises(InputError, match="expected another word for each label"):
        _words_of(text)
