"""What BERT's descendants were trained with, as far as their papers say: each is BERT's recipe with a few fields changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertkit.data.masking import Masking
from bertkit.model.config import MEMBERS, sized
from bertkit.recipes.bert import bert_base
from bertkit.train.recipe import Optimizer, Phase, Recipe, Schedule


def _member(name: str, family: str, **changes: Any) -> Recipe:
    config = sized("base", **MEMBERS[family] | {"pooler": False} | changes)
    return replace(bert_base(), name=name, family=family, config=config, pairs="none")


def roberta_base() -> Recipe:
    """Full sentences of 512 tokens, 8,192 of them a step, no next sentence (Liu et al., 2019)."""
    return replace(
        _member("roberta-base", "roberta"),
        phases=(Phase(length=512),),
        batch_tokens=4_194_304,
        steps=500_000,
        optimizer=Optimizer(lr=6e-4, beta2=0.98),
        schedule=Schedule(warmup=0.048),
    )


def albert_base() -> Recipe:
    """One block for all layers, narrow pieces, and whether two sentences are in order (Lan et al., 2020)."""
    return replace(
        _member("albert-base", "albert", embedding=128),
        pairs="order",
        masking=Masking(scheme="span"),
        phases=(Phase(length=512),),
        batch_tokens=2_097_152,
        steps=125_000,
        optimizer=Optimizer(lr=1.76e-3),
        schedule=Schedule(warmup=0.025),
    )


def electra_base() -> Recipe:
    """A generator fills in, the model tells what it filled in (Clark et al., 2020)."""
    return replace(
        _member("electra-base", "electra"),
        objective="replaced",
        masking=Masking(mask=0.85, random=0.0),
        phases=(Phase(length=512),),
        steps=766_000,
        optimizer=Optimizer(lr=2e-4),
        schedule=Schedule(warmup=0.013),
    )


def electra_small() -> Recipe:
    """12 layers, 256 wide, pieces 128 wide; 128 sequences of 128 tokens a step."""
    sizes = dict(layers=12, width=256, heads=4, feedforward=1024, embedding=128)
    return replace(
        electra_base(),
        name="electra-small",
        config=_member("", "electra", **sizes).config,
        phases=(Phase(length=128),),
        batch_tokens=16_384,
        steps=1_000_000,
        optimizer=Optimizer(lr=5e-4),
        schedule=Schedule(warmup=0.01),
    )


def spanbert_base() -> Recipe:
    """Spans are hidden, and told from their edges too; single texts (Joshi et al., 2020)."""
    return replace(
        _member("spanbert-base", "bert"),
        objective="spans",
        masking=Masking(scheme="span"),
        phases=(Phase(length=512),),
        steps=2_400_000,
        schedule=Schedule(warmup=0.004),
    )


def deberta_base() -> Recipe:
    """Disentangled attention, trained as ELECTRA is (He et al., 2023)."""
    return replace(
        electra_base(),
        name="deberta-v3-base",
        family="deberta-v2",
        config=_member("", "deberta-v2").config,
        batch_tokens=4_194_304,
        steps=500_000,
        optimizer=Optimizer(lr=6e-4, beta2=0.98),
        schedule=Schedule(warmup=0.02),
    )


def longformer_base() -> Recipe:
    """4,096 tokens, each with 256 to either side (Beltagy et al., 2020); meant to go on from a converted BERT or RoBERTa."""
    return replace(
        _member("longformer-base", "longformer", positions=4096, window=256),
        phases=(Phase(length=4096),),
        batch_tokens=262_144,
        steps=65_000,
        optimizer=Optimizer(lr=3e-5),
        schedule=Schedule(warmup=0.008),
    )


def modernbert_base() -> Recipe:
    """22 narrow pre-norm layers, rotary places, gates, one layer in three looks everywhere (Warner et al., 2024)."""
    sizes = dict(layers=22, feedforward=1152, positions=8192, window=64, global_every=3)
    return replace(
        _member("modernbert-base", "modernbert", **sizes),
        masking=Masking(rate=0.3),
        phases=(Phase(length=1024),),
        batch_tokens=4_718_592,
        steps=365_000,
        optimizer=Optimizer(lr=8e-4, beta2=0.98, weight_decay=1e-5),
        schedule=Schedule(kind="trapezoid", warmup=0.002, cooldown=0.03),
    )


def distilbert_base() -> Recipe:
    """Half of BERT's layers, taught by it; for `bertkit distill` (Sanh et al., 2019)."""
    return replace(
        _member("distilbert-base", "distilbert", layers=6),
        phases=(Phase(length=512),),
        batch_tokens=2_097_152,
        steps=25_000,
        optimizer=Optimizer(lr=5e-4, beta2=0.98),
        schedule=Schedule(warmup=0.05),
    )
