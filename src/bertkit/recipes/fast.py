"""For a short budget on one device: what later work found to give more for less, on BERT's own architecture."""

from __future__ import annotations

from dataclasses import replace

from bertkit.data.masking import Masking
from bertkit.model.config import sized
from bertkit.train.recipe import Optimizer, Phase, Recipe, Schedule


def fast_base() -> Recipe:
    """More masks, no next sentence, no dropout, length 128, Muon, a triangle tied to the budget, a growing batch."""
    return Recipe(
        name="fast-base",
        config=sized("base", dropout=0.0, attention_dropout=0.0, pooler=False),
        pairs="none",
        short=0.0,
        masking=Masking(rate=0.3),
        phases=(Phase(length=128),),
        optimizer=Optimizer(kind="muon", lr=1e-3, muon_lr=2e-3, beta2=0.98, weight_decay=0.01, clip=0.5),
        schedule=Schedule(warmup=0.06),
        steps=20_000,
        batch_tokens=524_288,
        row_tokens=131_072,
        ramp=0.3,
        evaluate_every=500,
        checkpoint_every=1000,
    )


def fast_small() -> Recipe:
    config = sized("small", dropout=0.0, attention_dropout=0.0, pooler=False)
    return replace(fast_base(), name="fast-small", config=config, steps=5000, batch_tokens=262_144, graphs=True)


def demo() -> Recipe:
    """A minute or two on a laptop's processor."""
    return Recipe(
        name="demo",
        config=sized("tiny", positions=128, dropout=0.0, attention_dropout=0.0),
        phases=(Phase(length=64),),
        optimizer=Optimizer(kind="muon", lr=3e-3, muon_lr=3e-3, beta2=0.98),
        schedule=Schedule(warmup=0.1),
        steps=1200,
        batch_tokens=1024,
        row_tokens=1024,
        precision="fp32",
        compile=False,
        held_out=0.02,
        evaluate_every=200,
        evaluate_examples=256,
        checkpoint_every=400,
        log_every=50,
    )
