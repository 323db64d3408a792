"""Recipes for a short budget on one device, from later papers and our own experiments (docs/lab-notes.md)."""

from dataclasses import replace

from bertkit.data.masking import Masking
from bertkit.model.config import MEMBERS, sized
from bertkit.train.recipe import Optimizer, Phase, Recipe, Schedule


def fast_base() -> Recipe:
    """ModernBERT's blocks at BERT-base's size, replaced-token detection with a narrow generator, Muon, small batches, a
    triangular learning rate schedule over the budget, and longer texts at the end."""
    blocks = MEMBERS["modernbert"] | dict(feedforward=2048, positions=512, window=64, global_every=1)
    return Recipe(
        name="fast-base",
        config=sized("base", pooler=False, **blocks),
        family="modernbert",
        objective="replaced",
        generator=1 / 12,
        pairs="none",
        short=0.0,
        masking=Masking(mask=0.85, random=0.0),
        phases=(Phase(length=128, share=0.9), Phase(length=512, share=0.1)),
        optimizer=Optimizer(kind="muon", lr=5e-4, muon_lr=1e-3, weight_decay=0.1, beta2=0.98),
        schedule=Schedule(warmup=0.06),
        graphs=True,
        budget=20 * 60.0,
        batch_tokens=32_768,
    )


def fast_small() -> Recipe:
    """10 layers of width 256: 14.5 M parameters with the English vocabulary. Half of the texts train masked language
    modelling instead, so that the model can do both."""
    base = fast_base()
    config = base.config.with_(layers=10, width=256, heads=4, feedforward=512)
    optimizer, masking = replace(base.optimizer, lr=1e-3, weight_decay=0.01), replace(base.masking, rate=0.22)
    return replace(base, name="fast-small", config=config, objective="both", optimizer=optimizer, masking=masking)


def demo() -> Recipe:
    """A minute or two on a laptop's CPU."""
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
    )
