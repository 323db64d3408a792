"""Small pre-training runs."""

from dataclasses import replace
from pathlib import Path

from bertkit.data.masking import Masking
from bertkit.model.config import Config
from bertkit.train.log import read_metrics
from bertkit.train.recipe import Optimizer, Phase, Recipe, Schedule

TIMES = ("elapsed", "tokens_per_second", "flop_utilisation")  # fields that differ between two equal runs
TINY = Config(vocabulary=2000, layers=2, width=32, heads=2, feedforward=64, positions=64)
SMALL_RUN = Recipe(
    name="small-run",
    config=TINY,
    masking=Masking(rate=0.15),
    phases=(Phase(length=32, share=0.7), Phase(length=64, share=0.3)),
    optimizer=Optimizer(lr=1e-3),
    schedule=Schedule(warmup=0.2),
    steps=12,
    batch_tokens=1024,
    row_tokens=512,
    precision="fp32",
    compile=False,
    held_out=0.05,
    evaluate_every=4,
    evaluate_examples=20,
    checkpoint_every=3,
    log_every=2,
)


def without_dropout(recipe: Recipe) -> Recipe:
    return replace(recipe, config=replace(recipe.config, dropout=0.0, attention_dropout=0.0))


def metrics(run: Path) -> list[dict]:
    """The rows of a run that two equal runs share."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in read_metrics(run)]
