"""From raw text to answers, through every stage, in Python."""

import numpy as np
import torch
from support.stories import stories

import bertkit


def test_the_journey(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(stories(300)))
    learned = bertkit.learn_vocabulary([tmp_path / "corpus.txt"], 400, tmp_path / "tokenizer")
    tokenizer = bertkit.Tokenizer.load(tmp_path / "tokenizer")
    assert tokenizer.vocabulary == learned.tokenizer.vocabulary
    ids, bounds = bertkit.CorpusEncoder(tokenizer).encode(list(stories(300)))
    assert (ids != tokenizer.unk).all()
    assert len(bounds) == 301
    model = bertkit.create("tiny", tokenizer, seed=3)
    model.save(tmp_path / "model")
    again = bertkit.convert(tmp_path / "model", tmp_path / "copy")
    text = "Mara is a [MASK] in Elmford."
    assert again.fill(text) == model.fill(text)
    np.testing.assert_array_equal(again.embed([text]), model.embed([text]))


def test_the_same_seed_gives_the_same_weights(tokenizer):
    before = torch.random.get_rng_state()
    one, two, other = (bertkit.create("tiny", tokenizer, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    pieces = [model.network.encoder.embeddings.pieces.weight for model in (one, two, other)]
    assert torch.equal(pieces[0], pieces[1])
    assert not torch.equal(pieces[0], pieces[2])
