"""Every member of the family computes what its transformers class does, ragged batches and gradients included."""

import pytest
import torch
from support.batches import pack
from support.family import CHANGES, counterpart, small
from support.reference import draw_sequences, padded, unpadded

from bertkit.bundle import families
from bertkit.bundle.members import FAMILIES
from bertkit.model.config import MEMBERS
from bertkit.model.encoder import Encoder
from bertkit.model.longformer import choose_global
from bertkit.tasks.pretraining import Pretraining

SIZES = [5, 40, 1, 17, 33, 2]


def inputs(name, sizes=SIZES):
    ids, segments = draw_sequences(sizes, 80)
    ids = [row.clip(2) for row in ids]  # 0 and 1 are what the references pad with
    grid = padded(ids, segments)
    if "roberta" in name or name in ("camembert", "longformer"):
        grid["input_ids"][grid["attention_mask"] == 0] = 1
    if MEMBERS[name].get("segments", 2) < 2:
        del grid["token_type_ids"]
    return ids, pack(ids, segments), grid


def scrambled(network):
    """Nothing as it began: norms and biases too."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("name", CHANGES)
def test_hidden_states_agree(name):
    network = scrambled(Pretraining(small(name), masked=False, next_sentence=False)).eval()
    model = counterpart(name, network)
    ids, batch, grid = inputs(name)
    with torch.no_grad():
        theirs = model(**grid, output_hidden_states=True)
        ours = network.encoder.hidden_states(batch)
        torch.testing.assert_close(network.encoder(batch), unpadded(theirs.last_hidden_state, ids), atol=5e-5, rtol=0)
        for mine, other in zip(ours, theirs.hidden_states, strict=True):
            torch.testing.assert_close(mine, unpadded(other, ids), atol=5e-5, rtol=0)


def test_answers_turn_queries_and_keys_in_their_place():
    """They give what training gives, once and again."""
    network = scrambled(Pretraining(small("modernbert"), masked=False, next_sentence=False)).eval()
    _, batch, _ = inputs("modernbert")
    with torch.inference_mode():
        first, second = network.encoder(batch), network.encoder(batch)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, network.encoder(batch).detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_masked_logits_and_gradients_agree(name, activation):
    network = scrambled(Pretraining(small(name, activation=activation), next_sentence=False)).train()
    model = counterpart(name, network, FAMILIES[name].classes["masked",])
    ids, batch, grid = inputs(name)
    mine = network.masked_logits(network.encoder(batch))
    theirs = unpadded(model(**grid).logits, ids)
    torch.testing.assert_close(mine, theirs, atol=5e-5, rtol=0)
    mine.square().mean().backward()
    theirs.square().mean().backward()
    family, layers = FAMILIES[name], network.encoder.config.layers
    gradients = {key: p.grad for key, p in network.named_parameters() if p.grad is not None}
    found = families.to_hugging_face(gradients, family, layers)[0]
    theirs = model.named_parameters(remove_duplicate=False)  # a tied weight under both of its names
    expected = {key: p.grad for key, p in theirs if p.grad is not None}
    assert len(set(found) & set(expected)) > 10
    assert not any(found[key].any() for key in set(found) - set(expected))
    for key in set(found) & set(expected):
        torch.testing.assert_close(
            found[key], expected[key], atol=1e-6, rtol=1e-3, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "longformer"])
def test_attention_weights_agree(name):
    network = scrambled(Pretraining(small(name), masked=False, next_sentence=False)).eval()
    model = counterpart(name, network)
    ids, batch, grid = inputs(name)
    with torch.no_grad():
        theirs = model(**grid, output_attentions=True).attentions
        for layer, ours in enumerate(network.encoder.attention_weights(batch)):
            for row, (size, weights) in enumerate(zip(map(len, ids), ours, strict=True)):
                torch.testing.assert_close(weights, theirs[layer][row, :, :size, :size], atol=1e-5, rtol=0)


@pytest.mark.parametrize("choice", ["none", "first", "question"])
def test_attention_weights_of_windows_are_what_mixes(choice):
    """Weights times values, mapped on, are what the layer gives."""
    torch.manual_seed(0)
    encoder = scrambled(Encoder(small("longformer", global_tokens=choice))).eval()
    _, batch, _ = inputs("longformer")
    attention, x = encoder.blocks[0].attention, torch.randn(sum(SIZES), 32)
    with torch.no_grad():
        values = attention.qkv(x).view(-1, 3, 4, 8)[:, 2]
        wide = attention.global_qkv(x).view(-1, 3, 4, 8)[:, 2]
        chosen = choose_global(batch, choice)
        parts = []
        for weights, v, g, c in zip(
            attention.weights(x, batch, None), values.split(SIZES), wide.split(SIZES), chosen.split(SIZES), strict=True
        ):
            mixed = torch.where(c[None, :, None], weights @ g.transpose(0, 1), weights @ v.transpose(0, 1))
            parts.append(mixed.transpose(0, 1).flatten(1))
        torch.testing.assert_close(attention.output(torch.cat(parts)), attention(x, batch, None), atol=1e-5, rtol=0)


def test_the_discriminator_agrees():
    network = scrambled(Pretraining(small("electra"), masked=False, next_sentence=False, replaced=True)).eval()
    model = counterpart("electra", network, "ElectraForPreTraining")
    ids, batch, grid = inputs("electra")
    with torch.no_grad():
        mine = network.replaced(network.encoder(batch))
        torch.testing.assert_close(mine, unpadded(model(**grid).logits, ids), atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", CHANGES)
def test_batch_mates_do_not_matter(name):
    torch.manual_seed(0)
    encoder = Encoder(small(name)).eval()
    ids, batch, _ = inputs(name)
    with torch.no_grad():
        for one, segments, together in zip(ids, draw_sequences(SIZES, 80)[1], encoder(batch).split(SIZES), strict=True):
            torch.testing.assert_close(encoder(pack([one], [segments])), together, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CHANGES)
def test_wanted_tokens_get_the_vectors_and_gradients_of_all(name):
    torch.manual_seed(0)
    network = Encoder(small(name)).eval()
    _, batch, _ = inputs(name)
    wanted = torch.tensor([5, 0, 3, 3, sum(SIZES) - 1])
    found = []
    for x in (network(batch)[wanted], network(batch, wanted)):
        network.zero_grad()
        x.square().sum().backward()
        found.append((x.detach(), [p.grad for p in network.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)
