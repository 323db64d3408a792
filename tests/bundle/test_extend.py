import pytest
import torch
from support.stores import made_up_store
from support.stories import stories

import bertkit
from bertkit.bundle.changes import _sources, extend_vocabulary
from bertkit.errors import InputError
from bertkit.tasks.pretraining import Pretraining
from bertkit.text.corpus import Corpus
from bertkit.text.vocabulary import learn_vocabulary


def test_new_pieces_begin_as_the_mean_of_their_old_ones(model, tokenizer):
    words = [piece for piece in tokenizer.vocabulary if piece != "bakery"]
    grown = bertkit.Tokenizer.from_vocabulary([*words, "xyz", "##xyz"], cased=False)
    network = Pretraining(model.config.with_(vocabulary=len(grown)))
    extend_vocabulary(network, grown, model.bundle)
    old, new = (n.encoder.embeddings.pieces.weight for n in (model.network, network))
    ids = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
    for index, piece in enumerate(words):
        assert torch.equal(new[index], old[ids[piece]])
    mean = old[[ids["x"], ids["##y"], ids["##z"]]].mean(0)
    torch.testing.assert_close(new[-1], mean)
    torch.testing.assert_close(new[-2], mean)
    assert torch.equal(network.encoder.blocks[0].attention.qkv.weight, model.network.encoder.blocks[0].attention.qkv.weight)


def test_heads_that_are_missing_stay_new(model, tokenizer):
    model.network.masked = None
    network = Pretraining(model.config)
    before = network.masked.dense.weight.clone()
    extend_vocabulary(network, tokenizer, model.bundle)
    assert torch.equal(network.masked.dense.weight, before)
    assert torch.equal(network.next.output.weight, model.network.next.output.weight)


def test_a_model_that_goes_on_keeps_its_shape(model, tmp_path):
    store = made_up_store(tmp_path / "s", 50)
    with pytest.raises(InputError, match="keep the model's shape"):
        bertkit.pretrain(store.path, tmp_path / "r", recipe="demo", init=model.bundle, settings=["layers=6"])
    assert not (tmp_path / "r").exists()


def sources(old, new):
    return {piece: [old.vocabulary[i] for i in ids] for piece, ids in zip(new.vocabulary, _sources(old, new), strict=True)}


def test_pieces_of_another_kind_begin_as_their_text(tokenizer, tmp_path):
    """What a kind writes for the beginning of a word, for bytes and for its special pieces is not what it reads."""
    (tmp_path / "a.txt").write_text("\n\n".join([*stories(50), "çocuk " * 500]))
    bpe, unigram = (learn_vocabulary(Corpus([tmp_path]), 300, kind=kind).tokenizer for kind in ("bpe", "unigram"))
    for new, old in ((bpe, tokenizer), (unigram, tokenizer)):
        found = sources(old, new)
        assert all(found[name] == [old.specials[role]] for role, name in new.specials.items())
        assert found[("Ġ" if new is bpe else "▁") + "the"] == ["the"]
    assert sources(tokenizer, bpe)["Ã"] == sources(tokenizer, bpe)["Ġ"] == ["[UNK]"]
    found = sources(bpe, tokenizer)
    assert found["[MASK]"] == ["<mask>"] and found["the"] == ["Ġthe"] and found["##t"] == ["t"] and found["."] == ["Ġ", "."]
