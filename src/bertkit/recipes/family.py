"""The paper's recipe and those of BERT's descendants, as far as their papers give them: each is BERT's with a few fields
changed."""

from dataclasses import replace
from typing import Any

from bertkit.data.masking import Masking
from bertkit.model.config import MEMBERS, sized
from bertkit.train.recipe import Optimizer, Phase, Recipe, Schedule

Fields = dict[str, Any]  # of a Recipe
REPLACED: Fields = dict(objective="replaced", masking=Masking(mask=0.85, random=0.0))  # as in ELECTRA


def bert(size: str) -> Recipe:
    """256 sequences × 512 tokens per step, 1M steps, Adam 1e-4, 10,000 warm-up steps, 90% at length 128 (appendix A.2)."""
    return Recipe(name=f"bert-{size}", config=sized(size))


def _member(
    name: str, family: str, *, length: int = 512, lr: float = 1e-4, beta2: float = 0.999, warmup: float, **fields: Any
) -> Recipe:
    """Single texts of one length; the member's configuration at BERT-base's size, with the fields of `config` changed."""
    config = sized("base", **MEMBERS[family] | {"pooler": False} | fields.pop("config", {}))
    optimizer, schedule = Optimizer(lr=lr, beta2=beta2), Schedule(warmup=warmup)
    usual: Fields = dict(pairs="none", phases=(Phase(length=length),), optimizer=optimizer, schedule=schedule)
    return Recipe(name=name, family=family, config=config, **usual | fields)


def roberta_base() -> Recipe:
    """Full sentences up to 512 tokens, 8,192 sequences per step, no next-sentence prediction (Liu et al., 2019)."""
    return _member("roberta-base", "roberta", batch_tokens=4_194_304, steps=500_000, lr=6e-4, beta2=0.98, warmup=0.048)


def albert_base() -> Recipe:
    """One block shared by all layers, narrow piece embeddings, sentence-order prediction (Lan et al., 2020)."""
    told: Fields = dict(config=dict(embedding=128), pairs="order", masking=Masking(scheme="span"))
    return _member("albert-base", "albert", **told, batch_tokens=2_097_152, steps=125_000, lr=1.76e-3, warmup=0.025)


def electra_base() -> Recipe:
    """Replaced-token detection: finds the pieces that a generator filled in (Clark et al., 2020)."""
    return _member("electra-base", "electra", **REPLACED, steps=766_000, lr=2e-4, warmup=0.013)


def electra_small() -> Recipe:
    """12 layers of width 256, piece embeddings of width 128; 128 sequences of 128 tokens per step."""
    sizes: Fields = dict(config=dict(layers=12, width=256, heads=4, feedforward=1024, embedding=128), length=128)
    return _member("electra-small", "electra", **REPLACED, **sizes, batch_tokens=16_384, lr=5e-4, warmup=0.01, graphs=True)


def spanbert_base() -> Recipe:
    """Masks spans and also predicts them from their edges; single texts (Joshi et al., 2020)."""
    told: Fields = dict(objective="spans", masking=Masking(scheme="span"))
    return _member("spanbert-base", "bert", **told, steps=2_400_000, warmup=0.004)


def deberta_base() -> Recipe:
    """Disentangled attention, trained like ELECTRA (He et al., 2023)."""
    amount: Fields = dict(batch_tokens=4_194_304, steps=500_000)
    return _member("deberta-v3-base", "deberta-v2", **REPLACED, **amount, lr=6e-4, beta2=0.98, warmup=0.02)


def longformer_base() -> Recipe:
    """4,096 tokens, a window of 256 to each side (Beltagy et al., 2020); to continue from a converted BERT or RoBERTa."""
    sizes: Fields = dict(config=dict(positions=4096, window=256), length=4096)
    return _member("longformer-base", "longformer", **sizes, batch_tokens=262_144, steps=65_000, lr=3e-5, warmup=0.008)


def modernbert_base() -> Recipe:
    """22 narrow pre-norm layers, rotary positions, gates, global attention in every third layer (Warner et al., 2024)."""
    sizes: Fields = dict(config=dict(layers=22, feedforward=1152, positions=8192, window=64, global_every=3), length=1024)
    amount: Fields = dict(masking=Masking(rate=0.3), batch_tokens=4_718_592, steps=365_000)
    recipe = _member("modernbert-base", "modernbert", **sizes, **amount, lr=8e-4, beta2=0.98, warmup=0.002)
    schedule = replace(recipe.schedule, kind="trapezoid", cooldown=0.03)
    return replace(recipe, optimizer=replace(recipe.optimizer, weight_decay=1e-5), schedule=schedule)


def distilbert_base() -> Recipe:
    """Half of BERT's layers, distilled from it; for `bertkit distill` (Sanh et al., 2019)."""
    amount: Fields = dict(config=dict(layers=6), batch_tokens=2_097_152, steps=25_000)
    return _member("distilbert-base", "distilbert", **amount, lr=5e-4, beta2=0.98, warmup=0.05)
