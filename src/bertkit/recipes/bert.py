"""The paper's recipe (appendix A.2), in its two sizes and the published miniatures."""

from __future__ import annotations

from dataclasses import replace

from bertkit.model.config import sized
from bertkit.train.recipe import Recipe


def bert_base() -> Recipe:
    """256 sequences × 512 tokens a step, 1M steps, Adam 1e-4, 10,000 steps of warm-up, 90% at length 128."""
    return Recipe()


def bert_large() -> Recipe:
    return replace(bert_base(), name="bert-large", config=sized("large"))


def bert_medium() -> Recipe:
    return replace(bert_base(), name="bert-medium", config=sized("medium"))


def bert_small() -> Recipe:
    return replace(bert_base(), name="bert-small", config=sized("small"))


def bert_mini() -> Recipe:
    return replace(bert_base(), name="bert-mini", config=sized("mini"))


def bert_tiny() -> Recipe:
    return replace(bert_base(), name="bert-tiny", config=sized("tiny"))
