"""Named recipes: functions that return one, mostly another recipe with a few fields changed."""

from collections.abc import Callable
from functools import partial

from bertkit.errors import check_choice
from bertkit.model.config import SIZES
from bertkit.recipes import family
from bertkit.recipes.fast import demo, fast_base, fast_small
from bertkit.train.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **{f"bert-{size}": partial(family.bert, size) for size in SIZES},
    "fast-small": fast_small,
    "fast-base": fast_base,
    "demo": demo,
    "roberta-base": family.roberta_base,
    "albert-base": family.albert_base,
    "electra-base": family.electra_base,
    "electra-small": family.electra_small,
    "spanbert-base": family.spanbert_base,
    "deberta-v3-base": family.deberta_base,
    "longformer-base": family.longformer_base,
    "modernbert-base": family.modernbert_base,
    "distilbert-base": family.distilbert_base,
}


def find_recipe(name: str) -> Recipe:
    check_choice("recipe", name, RECIPES)
    return RECIPES[name]()
