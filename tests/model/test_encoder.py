"""The encoder is BERT: outputs and gradients equal transformers', on the same weights and ragged batches."""

import pytest
import torch
import torch.nn.functional as F
from support.batches import pack
from support.reference import draw_sequences, padded, reference_of, unpadded

from bertkit.model.config import Config, sized
from bertkit.model.encoder import Encoder
from bertkit.tasks.pretraining import Pretraining

pytest.importorskip("transformers")

ODD = Config(layers=3, width=60, heads=5, feedforward=137, positions=37, segments=3, vocabulary=211, activation="gelu_tanh")
CONFIGS = {
    "tiny": sized("tiny"),
    "mini": sized("mini", vocabulary=5000),
    "medium": sized("medium", vocabulary=1000),
    "base": sized("base"),
    "odd": ODD,
}
SIZES = [5, 37, 1, 12, 12, 30, 2]


@pytest.fixture(params=CONFIGS, scope="module")
def case(request):
    """A network with random weights, far enough from zero to show differences, and transformers' twin."""
    torch.manual_seed(0)
    config = CONFIGS[request.param].with_(dropout=0.0, attention_dropout=0.0)
    network = Pretraining(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    ids, segments = draw_sequences(SIZES, config.vocabulary, config.segments)
    return network, reference_of(network), ids, segments


def test_outputs_agree(case):
    network, reference, ids, segments = case
    batch = pack(ids, segments)
    with torch.no_grad():
        theirs = reference(**padded(ids, segments), output_hidden_states=True)
        states = network.encoder.hidden_states(batch)
        everywhere = network.masked_logits(states[-1])
        pooled = network.encoder.pooler(states[-1][batch.firsts])
        their_pooled = reference.bert(**padded(ids, segments)).pooler_output
    for ours, expected in zip(states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(ours, unpadded(expected, ids), atol=2e-5, rtol=0)
    torch.testing.assert_close(states[-1], network.encoder(batch), atol=0, rtol=0)
    torch.testing.assert_close(pooled, their_pooled, atol=2e-5, rtol=0)
    torch.testing.assert_close(everywhere, unpadded(theirs.prediction_logits, ids), atol=2e-5, rtol=0)
    torch.testing.assert_close(
        network.next_logits(states[-1][batch.firsts]), theirs.seq_relationship_logits, atol=2e-5, rtol=0
    )


def test_gradients_agree(case):
    network, reference, ids, segments = case
    batch, grid = pack(ids, segments), padded(ids, segments)
    places = torch.arange(0, len(batch.ids), 3)
    targets = torch.randint(network.encoder.config.vocabulary, (len(places),), generator=torch.Generator().manual_seed(1))
    follows = torch.arange(len(ids)) % 2

    x = network.encoder(batch)
    loss = F.cross_entropy(network.masked_logits(x[places]), targets)
    loss = loss + F.cross_entropy(network.next_logits(x[batch.firsts]), follows)
    network.zero_grad()
    loss.backward()

    theirs = reference(**grid)
    their_loss = F.cross_entropy(unpadded(theirs.prediction_logits, ids)[places], targets)
    their_loss = their_loss + F.cross_entropy(theirs.seq_relationship_logits, follows)
    reference.zero_grad()
    their_loss.backward()

    expected = dict(reference.named_parameters())
    for name, gradient in their_names(network, {n: p.grad for n, p in network.named_parameters()}).items():
        wanted = expected[name].grad
        assert (gradient - wanted).norm() <= 1e-4 * wanted.norm() + 1e-7, name


def their_names(network, tensors):
    from bertkit.bundle import families
    from bertkit.bundle.members import BERT

    return families.to_hugging_face(tensors, BERT, network.encoder.config.layers)[0]


def test_attention_weights_agree():
    network = Pretraining(ODD.with_(dropout=0.0, attention_dropout=0.0))
    ids, segments = draw_sequences(SIZES, ODD.vocabulary)
    with torch.no_grad():
        ours = network.encoder.attention_weights(pack(ids, segments))
        theirs = reference_of(network)(**padded(ids, segments), output_attentions=True).attentions
    assert len(ours) == ODD.layers
    for layer, expected in zip(ours, theirs, strict=True):
        for index, size in enumerate(SIZES):
            torch.testing.assert_close(layer[index], expected[index, :, :size, :size], atol=2e-5, rtol=0)


@pytest.mark.parametrize(("size", "count"), [("base", 109_482_240), ("large", 335_141_888)])
def test_parameter_counts_are_the_published(size, count):
    with torch.device("meta"):
        encoder = Encoder(sized(size))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == count


def test_checkpointing_gives_the_same_gradients_with_dropout():
    torch.manual_seed(0)
    encoder = Encoder(sized("tiny", vocabulary=100)).train()
    batch = pack(*draw_sequences(SIZES, 100))
    gradients = []
    for checkpointing in (False, True):
        encoder.checkpointing = checkpointing
        encoder.zero_grad()
        torch.manual_seed(1)
        encoder(batch).square().sum().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters() if parameter.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_dropout_drops_in_training_alone():
    encoder = Encoder(sized("tiny", vocabulary=100))
    batch = pack(*draw_sequences(SIZES, 100))
    encoder.train()
    assert not torch.equal(encoder(batch), encoder(batch))
    encoder.eval()
    assert torch.equal(encoder(batch), encoder(batch))


def test_bf16_stays_near_fp32():
    encoder = Encoder(sized("tiny", vocabulary=100)).eval()
    batch = pack(*draw_sequences(SIZES, 100))
    with torch.no_grad():
        exact = encoder(batch)
        rounded = encoder.to(torch.bfloat16)(batch).float()
    assert (rounded - exact).abs().mean() < 0.02


def test_weights_begin_as_the_paper_says():
    encoder = Encoder(sized("tiny"))
    weight = encoder.blocks[0].feedforward.input.weight
    assert weight.abs().max() <= 0.04
    assert 0.016 < weight.std() < 0.02
    assert not encoder.blocks[0].feedforward.input.bias.any()
    assert (encoder.embeddings.norm.weight == 1).all()


def test_left_to_right_agrees_with_transformers(tmp_path):
    import transformers
    from support.stores import made_up_tokenizer

    import bertkit
    from bertkit.bundle.bundle import Bundle, save_bundle

    config = ODD.with_(dropout=0.0, attention_dropout=0.0, causal=True, pooler=False, vocabulary=300, segments=2)
    network = Pretraining(config, next_sentence=False).eval()
    ids, segments = draw_sequences(SIZES, 300)
    save_bundle(Bundle(network, made_up_tokenizer(300)), tmp_path / "m")
    reference, report = transformers.BertLMHeadModel.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(report.values())
    batch = pack(ids, segments)
    with torch.no_grad():
        x = network.encoder(batch)
        logits = network.masked_logits(x)
        theirs = reference.eval()(**padded(ids, segments)).logits
        weights = network.encoder.attention_weights(batch)[0][1]
    torch.testing.assert_close(logits, unpadded(theirs, ids), atol=2e-5, rtol=0)
    assert not weights.triu(1).any()
    assert bertkit.load(tmp_path / "m").config.causal
