import pytest
import torch
from support.batches import pack
from support.reference import draw_sequences

from bertkit.model.config import sized
from bertkit.tasks.pretraining import Pretraining


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Pretraining(sized("tiny", vocabulary=100)).eval()


def test_the_masked_head_runs_on_the_given_places_only(network):
    batch = pack(*draw_sequences([9, 4], 100))
    x = network.encoder(batch)
    places = torch.tensor([2, 7, 11])
    everywhere = network.masked_logits(x)
    assert network.masked_logits(x[places]).shape == (3, 100)
    torch.testing.assert_close(network.masked_logits(x[places]), everywhere[places])
    assert network.masked_logits(x[places[:0]]).shape == (0, 100)


def test_the_decoder_is_tied_to_the_embeddings(network):
    names = dict(network.named_parameters())
    assert not any("decoder" in name for name in names)
    x = network.encoder(pack(*draw_sequences([5], 100)))
    network.masked_logits(x.detach()[[1]]).sum().backward()
    assert names["encoder.embeddings.pieces.weight"].grad.abs().sum() > 0


def test_next_logits_are_two_for_each_sequence(network):
    batch = pack(*draw_sequences([9, 4, 1], 100))
    assert network.next_logits(network.encoder(batch, batch.firsts)).shape == (3, 2)


def test_heads_are_optional():
    network = Pretraining(sized("tiny", vocabulary=100, pooler=False), masked=False, next_sentence=False)
    assert {name.split(".")[0] for name, _ in network.named_parameters()} == {"encoder"}
    assert network.encoder.pooler is None
