"""Where pre-training gets its rows from, and what it says of documents held out."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_store, made_up_tokenizer

import bertkit
from bertkit.atomic import read_json
from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.masking import Masking
from bertkit.data.store import Piece, Store, write_manifest, write_shard
from bertkit.errors import DataError, InputError
from bertkit.model.device import find_device, flops_per_token
from bertkit.tasks.objectives import JUDGED, OBJECTIVES
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.checkpoint import State
from bertkit.train.distributed import World
from bertkit.train.fit import Trainer
from bertkit.train.pretraining import PretrainingFeed, phase_sources, pretraining_job
from bertkit.train.recipe import Phase

CPU = find_device("cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up_store(tmp_path_factory.mktemp("store") / "s", 300)


def feed_of(store, recipe=SMALL_RUN, world=None):
    return PretrainingFeed(recipe, phase_sources(recipe, store, CPU)[0], world or World(), workers=0)


def ids(step):
    return [row.batch.ids[: row.tokens].tolist() for row in step.rows]


def test_a_step_has_the_rows_of_the_batch(store):
    feed = feed_of(store)
    step = feed.step(0.1, State())
    assert len(step.rows) == 2
    assert all(0.8 * 512 < row.tokens == len(row.batch.ids) <= 512 for row in step.rows)
    assert step.cursor > 0


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_ramp_from_an_eighth_to_all(store, ranks):
    recipe = replace(SMALL_RUN, batch_tokens=512 * 32, ramp=0.5)
    feeds = [feed_of(store, recipe, World(rank, ranks)) for rank in range(ranks)]
    rows = [feeds[0]._rows(progress / 100) for progress in range(101)]
    assert rows[0] == 4 and rows[50:] == [32] * 51
    assert rows == sorted(rows) and all(count % ranks == 0 for count in rows)
    assert rows[25] == pytest.approx(32 * (0.125 + 0.875 / 2), abs=ranks)
    steps = [feed.step(0.0, State()) for feed in feeds]
    assert [len(step.rows) for step in steps] == [4 // ranks] * ranks
    assert len({step.cursor for step in steps}) == 1  # all ranks go on from the same place


def test_without_a_ramp_all_steps_are_alike(store):
    feed = feed_of(store, replace(SMALL_RUN, batch_tokens=512 * 8))
    assert {feed._rows(progress / 20) for progress in range(21)} == {8}


def test_a_row_for_every_rank_even_where_the_batch_is_smaller(store):
    feed = feed_of(store, SMALL_RUN, World(0, 8))
    assert feed._rows(0.0) == 8
    ramped = feed_of(store, replace(SMALL_RUN, ramp=0.9))
    assert ramped._rows(0.0) == 1


def test_ranks_share_the_rows_of_a_step(store):
    recipe = replace(SMALL_RUN, batch_tokens=512 * 4)
    whole = ids(feed_of(store, recipe).step(0.0, State()))
    halves = [ids(feed_of(store, recipe, World(rank, 2)).step(0.0, State())) for rank in range(2)]
    assert [halves[0][0], halves[1][0], halves[0][1], halves[1][1]] == whole


def test_a_new_phase_begins_its_examples_anew(store):
    feed, state = feed_of(store), State()
    first = feed.step(0.0, state)
    state.cursor = first.cursor
    second = feed.step(0.69, state)
    assert (state.phase, state.cursor) == (0, first.cursor)
    assert ids(first) != ids(second)
    state.cursor = second.cursor
    third = feed.step(0.71, state)
    assert (state.phase, state.cursor) == (1, 0)
    assert ids(third) == ids(feed_of(store).step(0.71, State(phase=1, cursor=0)))
    assert max(int(row.batch.positions.max()) for row in first.rows) < 32
    assert max(int(row.batch.positions.max()) for row in third.rows) >= 32
    state.cursor = third.cursor
    feed.step(0.99, state)
    assert (state.phase, state.cursor) == (1, third.cursor)  # within a phase the cursor goes on
    feed.step(1.0, state)
    assert state.phase == 1


def test_the_same_length_twice_shows_other_examples(store):
    recipe = replace(SMALL_RUN, phases=(Phase(length=32, share=0.5), Phase(length=32, share=0.5)))
    feed = feed_of(store, recipe)
    assert ids(feed.step(0.0, State())) != ids(feed.step(0.9, State()))


def test_steps_are_a_function_of_progress_and_state(store):
    feed = feed_of(store)
    for progress, state in ((0.0, State()), (0.5, State(cursor=40)), (0.9, State(phase=1, cursor=3))):
        assert ids(feed.step(progress, replace(state))) == ids(feed_of(store).step(progress, replace(state)))


def test_work_is_counted_by_the_phase_s_length(store):
    feed = feed_of(store)
    for phase, length in ((0, 32), (1, 64)):
        assert feed.flops_per_token(State(phase=phase)) == flops_per_token(SMALL_RUN.config, length, 0.15)
    assert feed.flops_per_token(State(phase=1)) > feed.flops_per_token(State())


def job_of(store, recipe, run):
    torch.manual_seed(0)
    told = {} if recipe.objective in JUDGED else {"next_sentence": recipe.pairs != "none"}
    network = OBJECTIVES[recipe.objective](recipe.config, **told)
    return pretraining_job(run, recipe, store, network, CPU, World(), lambda to: None, workers=0)


def plain_figures(network, store, recipe, phase):
    """Held-out figures once more: each example by itself, each place by itself."""
    settings = ExampleSettings(
        pairs=recipe.pairs, length=recipe.phases[phase].length, short=recipe.short, masking=recipe.masking
    )
    options = dict(tokens=recipe.row_tokens, held_out=recipe.held_out, evaluation=True)
    source = ExampleSource(store, settings, seed=recipe.seed + 1000 * phase + 500, **options)
    losses, hits, follows, examples = [], [], [], 0
    for chosen in source.first(recipe.evaluate_examples):
        examples += len(chosen.numbers)
        for number in chosen.numbers:
            row = source.batch(replace(chosen, numbers=chosen.numbers[chosen.numbers == number]))
            x = network.encoder(row.batch)
            scores = network.masked_logits(x[row.places[: row.hidden]]).log_softmax(-1)
            targets = row.targets[: row.hidden]
            losses += [-scores[i, target].item() for i, target in enumerate(targets)]
            hits += (scores.argmax(1) == targets).tolist()
            if network.next is not None:
                follows.append(int(network.next_logits(x[row.batch.firsts])[0].argmax()) == int(row.labels[0]))
    return losses, hits, follows, examples


@pytest.mark.parametrize("pairs", ["next", "none"])
@pytest.mark.parametrize("phase", [0, 1])
@torch.no_grad()
def test_held_out_figures_are_those_of_a_plain_look(store, tmp_path, pairs, phase):
    recipe = replace(without_dropout(SMALL_RUN), pairs=pairs, evaluate_examples=9)
    job, _ = job_of(store, recipe, tmp_path / "r")
    trainer = Trainer(job)
    trainer.network.eval()
    figures, score = job.evaluate(trainer, State(phase=phase))
    losses, hits, follows, examples = plain_figures(job.network, store, recipe, phase)
    assert examples == 9
    loss = sum(losses) / len(losses)
    assert figures["held_out_loss"] == pytest.approx(loss, rel=1e-5)
    assert figures["held_out_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert figures["held_out_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert score == -figures["held_out_loss"]
    if pairs == "next":
        assert figures["held_out_next_accuracy"] == pytest.approx(sum(follows) / len(follows))
    else:
        assert set(figures) == {"held_out_loss", "held_out_perplexity", "held_out_accuracy"}
    again, _ = job.evaluate(trainer, State(phase=phase))
    assert again == figures  # the same examples every time


@pytest.mark.parametrize(("objective", "judges"), [("replaced", True), ("both", False)])
@torch.no_grad()
def test_held_out_figures_are_of_what_is_kept(store, tmp_path, objective, judges):
    recipe = replace(without_dropout(SMALL_RUN), objective=objective, pairs="none", evaluate_examples=9)
    job, _ = job_of(store, recipe, tmp_path / "r")
    figures, score = job.evaluate(Trainer(job), State())
    assert score == -figures["held_out_loss"]
    assert (figures["held_out_loss"] < 2) is judges  # one of two, or one of the vocabulary
    assert ("held_out_perplexity" not in figures) is judges
    assert {"held_out_accuracy", "held_out_generator_accuracy"} <= figures.keys()


def test_where_nothing_held_out_is_hidden_there_are_no_figures(tmp_path):
    """One word of pieces beyond the quota is all that is held out."""
    tokenizer, ids = made_up_tokenizer(), np.array([5, 7, 10, 13] + 400 * [5, 6], np.uint16)
    (tmp_path / "s" / "tokenizer").mkdir(parents=True)
    tokenizer.write_files(tmp_path / "s" / "tokenizer")
    piece = Piece(np.concatenate([ids[4:], ids[:4]]), np.array([400, 400, 4]), np.array([1, 1, 1]))
    write_manifest(tmp_path / "s", [write_shard(tmp_path / "s", 0, [piece])], ids.dtype, {"settings": {}, "dropped": {}})
    recipe = replace(SMALL_RUN, pairs="none", held_out=1e-9, masking=Masking(scheme="whole-word"), steps=1)
    bertkit.pretrain(tmp_path / "s", tmp_path / "r", recipe=recipe, device="cpu", quiet=True)
    assert not any("held_out_loss" in row for row in metrics(tmp_path / "r"))
    assert (tmp_path / "r" / "model").is_dir()


def test_a_fork_of_fewer_phases_than_it_has_seen_is_evaluated(store, tmp_path):
    job, _ = job_of(store, replace(without_dropout(SMALL_RUN), phases=(Phase(length=32),)), tmp_path / "r")
    assert job.evaluate(Trainer(job), State(phase=1)) == job.evaluate(Trainer(job), State(phase=0))


def test_a_hopeless_loss_has_a_perplexity_still(store, tmp_path):
    job, _ = job_of(store, replace(SMALL_RUN, evaluate_examples=3), tmp_path / "r")
    trainer = Trainer(job)
    with torch.no_grad():
        job.network.masked.bias.copy_(torch.linspace(-1e4, 1e4, 2000))
        figures, _ = job.evaluate(trainer, State())
    assert figures["held_out_loss"] > 50
    assert math.isfinite(figures["held_out_perplexity"])


def test_training_never_sees_what_is_held_out(store):
    recipe = replace(SMALL_RUN, held_out=0.3, pairs="none", short=0.0)
    job_feed = feed_of(store, recipe)
    (training, *_) = job_feed.loader.sources
    evaluation = ExampleSource(store, training.settings, seed=1, tokens=512, held_out=0.3, evaluation=True)
    plans = [source.plan(0) for source in (training, evaluation)]
    spans = [{place for a, n in zip(plan.a_begin, plan.a_size, strict=True) for place in range(a, a + n)} for plan in plans]
    assert spans[0] and spans[1] and not spans[0] & spans[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_have_one_shape_where_something_is_compiled(tmp_path, compiled):
    """Elsewhere grids of short documents are no longer than these are, whatever the phase's length."""
    store, config = made_up_store(tmp_path / "s", 200, longest=4), replace(SMALL_RUN.config, positions=512)
    recipe = replace(SMALL_RUN, compile=compiled, pairs="none", config=config, phases=(Phase(length=512),))
    phase = phase_sources(recipe, store, CPU)[0][0]
    cursor, places = 0, set()
    for _ in range(3):
        examples, cursor = phase.next_row(cursor)
        row = phase.batch(examples)
        places.add(sum(bucket.tokens.numel() for bucket in row.batch.buckets))
        assert row.pairs == 0 and row.tokens > 0.8 * 512
    assert (len(places) == 1 and min(places) > 2 * 512) if compiled else max(places) < 1.5 * 512


def test_without_anything_held_out_there_is_no_evaluation(store, tmp_path):
    job, samples = job_of(store, replace(SMALL_RUN, held_out=0.0), tmp_path / "r")
    assert job.evaluate is None and samples() == []


def test_samples_are_filled_in(store, tmp_path):
    _, samples = job_of(store, SMALL_RUN, tmp_path / "r")
    assert samples() and all(isinstance(text, str) for text in samples())


def test_a_row_shorter_than_an_example_is_refused(store):
    with pytest.raises(DataError, match="a row of 16 tokens is shorter"):
        feed_of(store, replace(SMALL_RUN, row_tokens=16, batch_tokens=1024))


def test_a_run_of_two_phases_logs_both(tmp_path):
    folder = made_up_store(tmp_path / "s", 60, longest=30).path
    phases = (Phase(length=32, share=0.5), Phase(length=48, share=0.5))
    recipe = replace(SMALL_RUN, steps=4, log_every=1, evaluate_every=2, phases=phases)
    bertkit.pretrain(folder, tmp_path / "r", recipe=recipe, device="cpu", quiet=True)
    rows = metrics(tmp_path / "r")
    assert [row["phase"] for row in rows if "masked_loss" in row] == [0, 0, 1, 1]
    assert [row["phase"] for row in rows if "held_out_loss" in row] == [0, 1]
    assert Store(folder).documents == 60


def test_steps_are_recorded_on_a_gpu_alone(store, tmp_path):
    recipe, network = replace(SMALL_RUN, graphs=True), Pretraining(SMALL_RUN.config)
    job, _ = pretraining_job(tmp_path / "r", recipe, store, network, CPU, World(), lambda to: None, 0)
    assert not job.recipe.graphs


UNSAVED = {
    "window=16": r"a bert would .* window: 16 → 0",
    "embedding=16": r"embedding: 16 → 0",
    "first_position=2": "vocabulary and first_position follow from the store",
    "masked=gelu": r"masked: gelu → ",
    "summary=relu": r"summary: relu → tanh",
    "family=distilbert": r"a distilbert would .* segments: 2 → 0",
    "family=modernbert": r"place: learned → rotary",
    "vocabulary=50": "vocabulary and first_position follow",
    "pooler=false": "pooler from pairs",
}


@pytest.mark.parametrize("setting", UNSAVED)
def test_what_would_not_be_read_as_it_was_trained_is_refused(store, tmp_path, setting):
    with pytest.raises(InputError, match=UNSAVED[setting]):
        bertkit.pretrain(store.path, tmp_path / "r", recipe=SMALL_RUN, settings=[setting], device="cpu", quiet=True)
    assert not (tmp_path / "r").exists()


def test_a_model_goes_on_in_its_own_family_whatever_the_recipe(store, tmp_path):
    rotary = bertkit.create(
        "tiny", store.tokenizer, family="modernbert", feedforward=64, positions=64, window=8, global_every=1
    )
    recipe = replace(SMALL_RUN, pairs="none", steps=1)
    bertkit.pretrain(store.path, tmp_path / "r", recipe=recipe, init=rotary.bundle, device="cpu", quiet=True)
    assert bertkit.load(tmp_path / "r" / "model").bundle.family.name == "modernbert"
    assert read_json(tmp_path / "r" / "recipe.json")["recipe"]["family"] == "modernbert"


def test_a_fork_with_another_batch_needs_no_rows_to_be_told(store, tmp_path):
    recipe = replace(SMALL_RUN, row_tokens=0, steps=1)
    go_on = partial(bertkit.pretrain, store.path, tmp_path / "r", recipe=recipe, device="cpu", quiet=True)
    go_on()
    go_on(settings=["batch_tokens=1500", "steps=2"], fork=True)
    assert read_json(tmp_path / "r" / "recipe.json")["recipe"]["row_tokens"] == 1500


def test_eight_bits_need_a_gpu_that_has_them(store, tmp_path):
    with pytest.raises(InputError, match=r"capability 8\.9 or more, found cpu; take precision=bf16"):
        bertkit.pretrain(store.path, tmp_path / "r", recipe=replace(SMALL_RUN, precision="fp8"), device="cpu", quiet=True)
    assert not (tmp_path / "r").exists()
