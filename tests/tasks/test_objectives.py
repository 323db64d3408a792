"""What the family is pre-trained on: the generator's fillings, spans' edges, and that each objective is learned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.family import small
from support.runs import SMALL_RUN, metrics
from support.stores import unigram_entropy
from support.stories import stories

import bertkit
from bertkit.data.examples import NOTHING, ExampleSettings, ExampleSource
from bertkit.data.masking import Masking
from bertkit.demo import topics
from bertkit.recipes import RECIPES, find_recipe
from bertkit.tasks.objectives import OBJECTIVES, Replaced, Spans, fill_in, generator_config, span_edges
from bertkit.train.distributed import World
from bertkit.train.fit import Trainer
from bertkit.train.pretraining import pretraining_job
from bertkit.train.recipe import Optimizer, Phase, Schedule

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    (folder / "s.txt").write_text("\n\n".join(stories(600, 0)) + "\n")
    bertkit.learn_vocabulary([folder / "s.txt"], 300, folder / "v")
    return bertkit.prepare([folder / "s.txt"], folder / "v", folder / "store")


@pytest.fixture(scope="module")
def row(store):
    settings = ExampleSettings(length=32, pairs="none", masking=Masking(scheme="span"))
    source = ExampleSource(store, settings, seed=0, tokens=256)
    return source.batch(source.next_row(0)[0])


def test_the_generator_fills_hidden_places_alone(row):
    torch.manual_seed(0)
    logits = torch.randn(len(row.places), 300)
    batch, replaced = fill_in(row, logits)
    hidden = row.places[row.targets != NOTHING]
    elsewhere = np.setdiff1d(np.arange(len(batch.ids)), hidden)
    assert torch.equal(batch.ids[elsewhere], row.batch.ids[elsewhere])
    assert not replaced[elsewhere].any()
    known = row.targets != NOTHING
    assert torch.equal(replaced[hidden], batch.ids[hidden] != row.targets[known])


def test_what_is_drawn_follows_the_generator(row):
    """Pieces are drawn as often as their softmax says."""
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(len(row.places), 3)
    torch.manual_seed(0)
    drawn = torch.cat([fill_in(row, logits)[0].ids[row.places[row.targets != NOTHING]] for _ in range(200)])
    shares = torch.bincount(drawn, minlength=3)[:3] / len(drawn)
    torch.testing.assert_close(shares, torch.tensor([0.0, 1.0, 2.0]).softmax(0), atol=0.02, rtol=0)


def test_edges_are_the_tokens_around_a_run(row):
    left, right, place = span_edges(row)
    hidden = set(row.places[: row.hidden].tolist())
    for at, a, b, inside in zip(row.places[: row.hidden].tolist(), left, right, place, strict=False):
        begin, end = at, at
        while begin - 1 in hidden:
            begin -= 1
        while end + 1 in hidden:
            end += 1
        assert (int(a), int(b), int(inside)) == (begin - 1, end + 1, at - begin)


def test_generator_and_discriminator_share_their_tables():
    network = Replaced(small("electra"))
    assert network.generator.encoder.embeddings.pieces is network.kept.encoder.embeddings.pieces
    assert [generator_config(small("electra", heads=4), share).width for share in (1 / 3, 1 / 2, 1 / 100)] == [8, 16, 8]
    assert len({name for name, _ in network.named_parameters() if "pieces" in name}) == 1


def test_edges_are_no_part_of_what_is_kept():
    assert not any("boundary" in name or "first" in name for name in Spans(small("bert")).kept.state_dict())


SHRUNK = dict(layers=2, width=64, heads=2, feedforward=128, positions=64, dropout=0.0, attention_dropout=0.0)
MORE = {
    "albert-base": dict(embedding=32),
    "electra-small": dict(embedding=32, heads=4),
    "deberta-v3-base": dict(buckets=16, heads=4),
    "longformer-base": dict(window=8),
    "modernbert-base": dict(window=8, global_every=2),
}


def shrunk(name):
    """A recipe for made-up stories."""
    recipe = find_recipe(name)
    return replace(
        recipe,
        config=recipe.config.with_(**SHRUNK | MORE.get(name, {})),
        phases=(Phase(length=32),),
        optimizer=Optimizer(lr=4e-3, beta2=0.98),
        schedule=Schedule(warmup=0.1),
        **dict(steps=150, batch_tokens=1024, row_tokens=1024, precision="fp32", compile=False, log_every=10),
        **dict(held_out=0.05, evaluate_every=150, evaluate_examples=64, checkpoint_every=150),
    )


@pytest.mark.parametrize("name", [name for name, make in RECIPES.items() if "family" in make.__module__])
def test_every_recipe_learns(name, store, tmp_path):
    """Losses fall well below their beginning and a guess by frequency; the artifact loads."""
    recipe = shrunk(name)
    made = bertkit.pretrain(store.path, tmp_path / "run", recipe=recipe, quiet=True)
    rows = [row for row in metrics(tmp_path / "run") if "lr" in row]
    filled = "generator_loss" if recipe.objective == "replaced" else "masked_loss"
    assert rows[-1][filled] < min(0.85 * rows[0][filled], unigram_entropy(store))
    if recipe.objective == "replaced":
        assert rows[-1]["token_loss"] < 0.9 * rows[0]["token_loss"]
    if recipe.objective == "spans":
        assert rows[-1]["boundary_loss"] < 0.85 * rows[0]["boundary_loss"]
    model = bertkit.load(made, device="cpu")
    assert model.bundle.family.name == recipe.family
    assert model.embed(["Mara is a baker."]).shape == (1, 64)
    rows = ["text,label", *(f"{text},{label}" for text, label in topics(40))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    settings = ["epochs=1", "max_length=32", "batch=16"]
    tuned = bertkit.finetune("classification", made, tmp_path / "t", train=tmp_path / "t.csv", settings=settings, quiet=True)
    assert 0 <= tuned["metrics"]["accuracy"] <= 1


def test_some_hidden_places_stay_hidden_for_both(row):
    batch, replaced = fill_in(row, torch.randn(len(row.places), 300), left=5)
    left, others = row.places[:5], row.places[5:][row.targets[5:] != NOTHING]
    assert torch.equal(batch.ids[left], row.batch.ids[left])
    assert not replaced[left].any()
    assert replaced.sum() > 0.9 * len(others)


def test_both_learns_to_judge_and_to_fill_in(store, tmp_path):
    optimizer = Optimizer(kind="muon", lr=2e-3, muon_lr=2e-3, beta2=0.98)
    told = dict(objective="both", masking=Masking(rate=0.25, mask=0.85, random=0.0), optimizer=optimizer, steps=250)
    recipe = replace(shrunk("modernbert-base"), **told)
    made = bertkit.pretrain(store.path, tmp_path / "run", recipe=recipe, quiet=True)
    rows = [row for row in metrics(tmp_path / "run") if "masked_loss" in row]
    assert rows[-1]["token_loss"] < 0.9 * rows[0]["token_loss"]
    assert rows[-1]["masked_loss"] < min(0.85 * rows[0]["masked_loss"], unigram_entropy(store))
    model = bertkit.load(made, device="cpu")
    assert model.bundle.network.replaced is None
    assert len(model.fill("Mara is a [MASK].")[0]) == 5


@pytest.mark.parametrize("objective", ["replaced", "both", "spans"])
def test_a_run_is_taken_up_bit_for_bit(objective, store, tmp_path):
    """Also where pieces are drawn, and tables are shared."""
    changes = dict(objective=objective, pairs="none", family="bert" if objective == "spans" else "electra")
    config = small("bert" if objective == "spans" else "electra", vocabulary=300, dropout=0.1)
    recipe = replace(SMALL_RUN, config=config, phases=(Phase(length=32),), **changes)

    def trainer(run):
        torch.manual_seed(3)
        network = OBJECTIVES[objective](recipe.config)
        return Trainer(pretraining_job(run, recipe, store, network, CPU, World(), lambda to: None, 0)[0])

    whole, begun = trainer(tmp_path / "whole"), trainer(tmp_path / "broken")
    (tmp_path / "broken").mkdir()
    state, other = whole.resume(), begun.resume()
    for _ in range(8):
        whole.step(state)
    for _ in range(3):
        begun.step(other)
    begun.checkpoint(other)
    again = trainer(tmp_path / "broken")
    other = again.resume()
    assert other.step == 3
    for _ in range(5):
        again.step(other)
    for (name, one), two in zip(whole.network.named_parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, two), name
