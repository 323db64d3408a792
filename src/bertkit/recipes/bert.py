"""The paper's recipe (appendix A.2), in its two sizes and those of the published miniatures."""

from __future__ import annotations

from bertkit.model.config import sized
from bertkit.train.recipe import Recipe


def bert(size: str) -> Recipe:
    """256 sequences × 512 tokens a step, 1M steps, Adam 1e-4, 10,000 steps of warm-up, 90% at length 128."""
    return Recipe(name=f"bert-{size}", config=sized(size))
