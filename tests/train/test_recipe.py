import json
from dataclasses import asdict, replace

import pytest

from bertkit.bundle.families import read_config, write_config
from bertkit.bundle.members import FAMILIES
from bertkit.errors import InputError
from bertkit.recipes import RECIPES, find_recipe
from bertkit.train.recipe import SCHEDULES, Phase, Recipe, Schedule, Tuning, change, rate_factor, with_rows
from bertkit.train.run import differences


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_sound_and_named(name):
    recipe = find_recipe(name)
    assert recipe.name == name
    assert json.loads(json.dumps(asdict(recipe)))["name"] == name


@pytest.mark.parametrize("name", RECIPES)
def test_what_every_recipe_makes_can_be_saved(name):
    recipe = find_recipe(name)
    config, family = recipe.config, FAMILIES[recipe.family]
    assert read_config(write_config(config, family), family).with_(pooler=config.pooler) == config


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("most", [8192, 20_000, 131_072])
@pytest.mark.parametrize("name", RECIPES)
def test_rows_are_as_long_as_memory_allows(name, most, ranks):
    recipe = find_recipe(name)
    fitting = with_rows(recipe, most, ranks)
    rows = fitting.batch_tokens / fitting.row_tokens
    assert rows == int(rows) and replace(fitting, row_tokens=recipe.row_tokens) == recipe
    if recipe.row_tokens:
        assert fitting == recipe
    else:
        assert fitting.row_tokens <= most and rows >= ranks
        assert 2 * fitting.row_tokens > most or rows < 2 * ranks  # no less than could be


def test_steps_that_cannot_be_halved_are_cut_all_the_same():
    assert with_rows(replace(find_recipe("bert-base"), batch_tokens=99_999), 8192).row_tokens == 99_999 // 41
    assert with_rows(replace(find_recipe("bert-base"), batch_tokens=5), 8192, ranks=8).row_tokens == 1


def test_rows_that_are_told_stay():
    assert with_rows(replace(find_recipe("bert-base"), row_tokens=1024), 8192, 8).row_tokens == 1024


def test_the_paper_s_recipe():
    recipe = find_recipe("bert-base")
    assert recipe.batch_tokens == 256 * 512
    assert (recipe.steps, recipe.optimizer.lr, recipe.optimizer.weight_decay) == (1_000_000, 1e-4, 0.01)
    assert recipe.schedule.warmup * recipe.steps == 10_000
    assert [(phase.length, phase.share) for phase in recipe.phases] == [(128, 0.9), (512, 0.1)]


def test_unknown_recipes_are_refused():
    with pytest.raises(InputError, match='did you mean "bert-base"'):
        find_recipe("bert-bas")


def test_settings_reach_every_field():
    recipe = change(
        Recipe(), ["steps=1e3", "seed=1e18", "optimizer.lr=3e-4", "rate=0.3", "compile=no", "phases=128:0.5,256:0.5"]
    )
    assert (recipe.steps, recipe.optimizer.lr, recipe.masking.rate, recipe.compile) == (1000, 3e-4, 0.3, False)
    assert recipe.seed == 10**18
    assert recipe.phases == (Phase(length=128, share=0.5), Phase(length=256, share=0.5))
    assert change(recipe, ["phases=64"]).phases == (Phase(length=64, share=1.0),)


BAD = {
    "stepz=3": "no setting 'stepz' \\(did you mean \"steps\"",
    "steps": "--set takes name=value",
    "steps=many": "steps is 'many'; expected int",
    "kind=adam": "could be optimizer.kind or schedule.kind",
    "optimizer.kind=adam": "expected one of adamw, muon",
    "schedule.kind=step": "expected one of linear",
    "rate=2": "not shares of a whole",
    "layers=0": "layers is 0",
    "phases=1024:1": "a phase has length 1024; the model has 512 positions",
    "phases=128:0.5": "shares add up to 0.5",
    "row_tokens=1000": "expected a multiple of row_tokens",
    "row_tokens=-1": "row_tokens -1; expected a multiple",
    "batch_tokens=0": "batch_tokens is 0, row_tokens .*; expected",
    "objective=both": "works without pairs, and pairs is next; add pairs=none",
    "generator=1.5": "generator is 1.5; expected its width over the model's",
    "compile=maybe": "compile is 'maybe'; expected bool",
    "keep=0": "at least 1",
    "steps=15e-1": "steps is '15e-1'; expected int",
    "steps=1e400": "steps is '1e400'; expected int",
    "optimizer.lr=nan": "lr is 'nan'; expected float",
    "optimizer.lr=-1": "at least 0, clip above 0",
    "clip=0": "at least 0, clip above 0",
    "beta2=1": "up to, not including, 1",
    "warmup=2": "expected shares of the run",
    "patience=-1": "patience is -1",
    "budget=-3": "budget -3.0",
    "checkpoint_every=-1": "checkpoint_every -1",
    "phases=0:1": "a phase has length 0",
    "evaluate_examples=0": "evaluate_examples must be at least 1",
    "held_out=-1": "held_out, ramp and short from 0 to 1",
    "family=foo": "family is 'foo'",
    "seed=-1": "a seed below 2",
    "precision=fp4": "expected one of fp32, bf16, fp8",
}


@pytest.mark.parametrize("setting", BAD)
def test_bad_settings_are_refused(setting):
    with pytest.raises(Exception, match=BAD[setting]):
        change(Recipe(), [setting])


@pytest.mark.parametrize("objective", ["replaced", "both", "spans"])
def test_next_pieces_are_told_by_one_objective_alone(objective):
    with pytest.raises(InputError, match=f"expected objective=masked with it, found {objective}"):
        change(Recipe(), ["causal=true", "pairs=none", f"objective={objective}"])


def test_eight_bits_are_for_pretraining_alone():
    assert change(Recipe(), ["precision=fp8"]).precision == "fp8"
    with pytest.raises(InputError, match="precision is 'fp8'; expected one of fp32, bf16"):
        change(Tuning(), ["precision=fp8"])


def test_differences_are_named():
    a, b = asdict(Recipe()), asdict(change(Recipe(), ["optimizer.lr=1", "steps=2"]))
    assert differences(a, b) == ["optimizer.lr: 0.0001 → 1.0", "steps: 1000000 → 2"]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_rise_then_fall(kind):
    schedule = Schedule(kind=kind, warmup=0.1)
    assert rate_factor(schedule, 0.0) == 0
    assert rate_factor(schedule, 0.05) == pytest.approx(0.5)
    assert rate_factor(schedule, 0.1) == pytest.approx(1)
    assert rate_factor(schedule, 1.0) == pytest.approx(1 if kind == "constant" else 0)
    assert rate_factor(schedule, 0.55) == pytest.approx(1 if kind in ("constant", "trapezoid") else 0.5)


def test_phases_follow_each_other():
    recipe = Recipe()
    assert [recipe.phase_at(progress) for progress in (0, 0.5, 0.899, 0.9, 0.95, 1.0)] == [0, 0, 0, 1, 1, 1]


def test_settings_that_must_fit_each_other_come_in_any_order():
    for settings in (["row_tokens=1000", "batch_tokens=3000"], ["batch_tokens=3000", "row_tokens=1000"]):
        assert change(Recipe(), settings).batch_tokens == 3000
