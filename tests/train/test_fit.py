"""A run that was stopped anywhere goes on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_store

import bertkit
from bertkit.errors import DataError, InputError, TrainingError
from bertkit.train import fit as fit_module
from bertkit.train.log import read_metrics
from bertkit.train.recipe import Optimizer


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up_store(tmp_path_factory.mktemp("store") / "s", 300).path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, store):
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(store, run)
    return run


def train(store, run, recipe=SMALL_RUN, **options):
    return bertkit.pretrain(store, run, recipe=recipe, device="cpu", quiet=True, **options)


def weights(run):
    return load_file(run / "model" / "model.safetensors")


def assert_equal_runs(a, b):
    assert metrics(a) == metrics(b)
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_leaves_a_model_metrics_and_its_recipe(whole):
    rows = metrics(whole)
    assert [row["step"] for row in rows if "masked_loss" in row] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in rows if "held_out_loss" in row] == [4, 8, 12]
    assert [row["phase"] for row in rows if "masked_loss" in row] == [0, 0, 0, 0, 1, 1]
    assert rows[-2]["masked_loss"] < rows[0]["masked_loss"]
    assert {path.name for path in (whole / "checkpoints").iterdir()} == {"00000009", "00000012"}
    assert json.loads((whole / "recipe.json").read_text())["recipe"]["name"] == "small-run"
    model = bertkit.load(whole / "model")
    assert model.answers() == ["embed", "features", "fill", "next"]


@pytest.mark.parametrize("failing", [1, 5, 10])
def test_a_run_that_broke_off_ends_the_same(store, whole, tmp_path, monkeypatch, failing):
    real = fit_module.Trainer.step

    def breaking(trainer, state):
        if state.step == failing:
            raise KeyError("broke off")
        real(trainer, state)

    monkeypatch.setattr(fit_module.Trainer, "step", breaking)
    with pytest.raises(KeyError):
        train(store, tmp_path / "r")
    monkeypatch.setattr(fit_module.Trainer, "step", real)
    train(store, tmp_path / "r")
    assert_equal_runs(tmp_path / "r", whole)


def test_batches_prepared_in_other_processes_are_the_same(store, whole, tmp_path):
    train(store, tmp_path / "r", workers=2)
    assert_equal_runs(tmp_path / "r", whole)


def command(store, run, *more):
    code = "import sys; from support.runs import SMALL_RUN; import bertkit; "
    code += "bertkit.pretrain(sys.argv[1], sys.argv[2], recipe=SMALL_RUN, device='cpu', quiet=True)"
    return [sys.executable, "-c", code, str(store), str(run), *more]


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_a_killed_run_ends_the_same(store, whole, tmp_path):
    """SIGKILL at random moments of training, then once more to the end."""
    draw = random.Random(0)
    for _ in range(2):
        child = subprocess.Popen(command(store, tmp_path / "r"), env=environment())
        while not (tmp_path / "r" / "metrics.jsonl").exists() and child.poll() is None:
            time.sleep(0.005)
        time.sleep(draw.random() * 0.15)
        child.kill()
        child.wait()
    subprocess.run(command(store, tmp_path / "r"), env=environment(), check=True)
    assert_equal_runs(tmp_path / "r", whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_with_a_checkpoint(store, whole, tmp_path, monkeypatch, number, code):
    real = fit_module.Trainer.step
    monkeypatch.setattr(fit_module.Trainer, "step", lambda t, s: (real(t, s), s.step == 5 and os.kill(os.getpid(), number)))
    with pytest.raises(SystemExit) as stopped:
        train(store, tmp_path / "r")
    assert stopped.value.code == code
    assert max(path.name for path in (tmp_path / "r" / "checkpoints").iterdir()) == "00000005"
    assert not (tmp_path / "r" / "model").exists()
    monkeypatch.setattr(fit_module.Trainer, "step", real)
    train(store, tmp_path / "r")
    assert_equal_runs(tmp_path / "r", whole)


def test_two_runs_do_not_write_to_one_folder(store, whole, tmp_path, monkeypatch):
    real, refused = fit_module.Trainer.step, []

    def meet(trainer, state):
        if state.step == 5:
            monkeypatch.setattr(fit_module.Trainer, "step", real)
            with pytest.raises(InputError, match=r"another run writes to .*r; wait for it"):
                bertkit.pretrain(store, tmp_path / "r", recipe=SMALL_RUN, device="cpu", quiet=True)
            refused.append(state.step)
        real(trainer, state)

    monkeypatch.setattr(fit_module.Trainer, "step", meet)
    bertkit.pretrain(store, tmp_path / "r", recipe=SMALL_RUN, device="cpu", quiet=True)
    assert refused and metrics(tmp_path / "r") == metrics(whole)


def test_a_damaged_checkpoint_is_passed_over(store, whole, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fit_module.Trainer, "finished", lambda t, s: s.step >= 9)
    train(store, tmp_path / "r")
    monkeypatch.undo()
    file = tmp_path / "r" / "checkpoints" / "00000009" / "00000.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    train(store, tmp_path / "r")
    assert "damaged" in caplog.text
    assert_equal_runs(tmp_path / "r", whole)


def test_a_run_goes_on_with_its_rows_on_a_smaller_device(store, tmp_path, monkeypatch):
    recipe = replace(SMALL_RUN, row_tokens=0)
    for steps, most in ((3, 600), (6, 300)):
        monkeypatch.setattr("bertkit.model.device.tokens_at_once", lambda *_, most=most: most)
        train(store, tmp_path / "r", recipe=replace(recipe, steps=steps), fork=True)
        assert json.loads((tmp_path / "r" / "recipe.json").read_text())["recipe"]["row_tokens"] == 512
    train(store, tmp_path / "new", recipe=recipe)
    assert json.loads((tmp_path / "new" / "recipe.json").read_text())["recipe"]["row_tokens"] == 256


def test_a_changed_recipe_is_refused_unless_forked(store, tmp_path):
    train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=3))
    with pytest.raises(TrainingError, match=r"has other settings: recipe\.steps: 3 → 6"):
        train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=6))
    train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=6), fork=True)
    assert metrics(tmp_path / "r")[-1]["step"] == 6
    settings = (tmp_path / "r" / "recipe.json").read_bytes()
    for other in ("feedforward=48", "layers=1", "layers=3"):
        with pytest.raises(TrainingError, match=r"r trains another network: .* differs; give another --out"):
            train(store, tmp_path / "r", settings=[other], fork=True)
    assert (tmp_path / "r" / "recipe.json").read_bytes() == settings
    (tmp_path / "r" / "recipe.json").write_text("{")
    with pytest.raises(TrainingError, match=r"recipe.json: not readable as JSON"):
        train(store, tmp_path / "r")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    with pytest.raises(TrainingError, match="holds no run"):
        train(store, tmp_path / "mine")


def test_a_loss_that_is_no_number_ends_the_run(store, tmp_path, monkeypatch):
    real = fit_module.Trainer._gradients

    def spoiled(trainer, step, counts, number):
        return real(trainer, step, counts, number) * (float("nan") if number == 4 else 1)

    monkeypatch.setattr(fit_module.Trainer, "_gradients", spoiled)
    with pytest.raises(TrainingError, match="not finite since step 4"):
        train(store, tmp_path / "r")
    assert json.loads((tmp_path / "r" / "nan.json").read_text())["step"] == 4
    assert [path.name for path in (tmp_path / "r" / "checkpoints").iterdir()] == ["00000003"]


def test_weights_that_are_no_numbers_are_not_saved(store, tmp_path):
    """No loss was computed with them yet."""
    with pytest.raises(TrainingError, match="not finite since step 1"):
        train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=1, optimizer=Optimizer(lr=1e300)))
    assert not any((tmp_path / "r" / name).exists() for name in ("checkpoints", "model", "best"))


def test_full_memory_is_told_with_what_to_do(store, tmp_path, monkeypatch):
    real, most = fit_module.Trainer._gradients, 256  # tokens that this memory holds

    def needing_memory(trainer, *given):
        if trainer.job.recipe.row_tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(trainer, *given)

    monkeypatch.setattr(fit_module.Trainer, "_gradients", needing_memory)
    with pytest.raises(TrainingError, match=r"rows of 512 tokens .* --set row_tokens=256 --fork"):
        train(store, tmp_path / "r")
    train(store, tmp_path / "r", settings=["row_tokens=256"], fork=True)


def test_a_full_disk_leaves_the_last_checkpoint(store, whole, tmp_path, monkeypatch):
    real, calls = fit_module.write_checkpoint, []

    def full(run, state, *rest):
        calls.append(state.step)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(run, state, *rest)

    monkeypatch.setattr(fit_module, "write_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        train(store, tmp_path / "r")
    assert [path.name for path in (tmp_path / "r" / "checkpoints").iterdir()] == ["00000003"]
    monkeypatch.undo()
    train(store, tmp_path / "r")
    assert_equal_runs(tmp_path / "r", whole)


def test_a_missing_store_is_named(tmp_path):
    with pytest.raises(DataError, match="no finished store here"):
        train(tmp_path / "nowhere", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_budget_ends_a_run(store, tmp_path):
    train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=100_000, checkpoint_every=1000), budget="1s")
    assert 3 < metrics(tmp_path / "r")[-1]["step"] < 5000


def test_a_budget_that_steps_do_not_use_up_changes_nothing(store, tmp_path):
    """The learning rate falls to its end with the last step, whichever bound ends the run."""
    train(store, tmp_path / "r", budget="1h")
    train(store, tmp_path / "s")
    rates = [[row["lr"] for row in metrics(tmp_path / name) if "lr" in row] for name in "rs"]
    assert rates[0] == rates[1]


def test_the_clock_stands_while_a_phase_compiles(store, tmp_path, monkeypatch):
    """A second for each step, a hundred for the first and the ninth, which begin a phase."""
    clock, gradients = [0.0], fit_module.Trainer._gradients

    def slow(trainer, step, counts, number):
        clock[0] += 100 if number in (0, 8) else 1
        return gradients(trainer, step, counts, number)

    monkeypatch.setattr(fit_module.Trainer, "_gradients", slow)
    monkeypatch.setattr(fit_module.time, "monotonic", lambda: clock[0])
    train(store, tmp_path / "r")
    rows = [row for row in read_metrics(tmp_path / "r") if "tokens_per_second" in row]
    assert [row["elapsed"] for row in rows] == [1, 3, 5, 7, 8, 10]
    assert all(row["tokens_per_second"] <= 1024 for row in rows)


def test_a_step_that_compiles_has_no_speed(store, tmp_path):
    train(store, tmp_path / "r", recipe=replace(SMALL_RUN, steps=3, log_every=1))
    rows = [row for row in read_metrics(tmp_path / "r") if "lr" in row]
    assert ["tokens_per_second" in row for row in rows] == [False, True, False]  # the third begins another phase


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_each_optimiser_learns_and_resumes(store, tmp_path, monkeypatch, kind):
    recipe = replace(without_dropout(SMALL_RUN), optimizer=Optimizer(kind=kind, lr=3e-3), pairs="none", short=0.0, steps=30)
    train(store, tmp_path / "a", recipe=recipe)
    rows = [row for row in metrics(tmp_path / "a") if "masked_loss" in row]
    assert rows[-1]["masked_loss"] < rows[0]["masked_loss"] - 0.05
    assert "next_loss" not in rows[0]
    monkeypatch.setattr(fit_module.Trainer, "finished", lambda t, s: s.step >= 8)
    train(store, tmp_path / "b", recipe=recipe)
    monkeypatch.undo()
    train(store, tmp_path / "b", recipe=recipe)
    assert_equal_runs(tmp_path / "a", tmp_path / "b")


def test_a_ramp_grows_the_batch(store, tmp_path):
    recipe = replace(SMALL_RUN, batch_tokens=4096, ramp=0.5, log_every=1)
    train(store, tmp_path / "r", recipe=recipe)
    tokens = [row["tokens"] for row in metrics(tmp_path / "r") if "masked_loss" in row]
    first, last = tokens[0], tokens[-1] - tokens[-2]
    assert last > 3 * first


def test_checkpointing_and_accumulation_change_nothing(store, tmp_path):
    recipe = without_dropout(SMALL_RUN)
    train(store, tmp_path / "a", recipe=recipe)
    train(store, tmp_path / "b", recipe=replace(recipe, checkpointing=True))
    for a, b in zip(metrics(tmp_path / "a"), metrics(tmp_path / "b"), strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_left_to_right_learns(store, tmp_path):
    recipe = without_dropout(SMALL_RUN)
    recipe = replace(
        recipe, config=replace(recipe.config, causal=True), pairs="none", short=0.0, optimizer=Optimizer(lr=3e-3)
    )
    train(store, tmp_path / "r", recipe=replace(recipe, steps=20))
    rows = [row for row in metrics(tmp_path / "r") if "masked_loss" in row]
    assert rows[-1]["masked_loss"] < rows[0]["masked_loss"] - 0.2
    assert bertkit.load(tmp_path / "r" / "model").config.causal


def test_one_document_trains_without_evaluation_and_says_so_otherwise(tmp_path):
    store = made_up_store(tmp_path / "s", 1, shards=1, longest=600).path
    with pytest.raises(DataError, match=r"the store has 1 documents, too few .* or set held_out=0"):
        train(store, tmp_path / "r")
    assert not (tmp_path / "r").exists()
    train(store, tmp_path / "r", recipe=replace(SMALL_RUN, held_out=0.0, steps=3))
    assert not any("held_out_loss" in row for row in metrics(tmp_path / "r"))
    assert (tmp_path / "r" / "report.html").exists()
