"""Small members of the family, and transformers' models with their weights."""

from typing import Any

import transformers

from bertkit.bundle import families
from bertkit.bundle.members import FAMILIES
from bertkit.model.config import MEMBERS, Config

SMALL = dict(vocabulary=80, layers=3, width=32, heads=4, feedforward=48, positions=96, pooler=False)
CHANGES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "camembert": {},
    "distilbert": {},
    "albert": dict(embedding=16, activation="gelu_tanh"),
    "electra": dict(embedding=16),
    "deberta-v2": dict(buckets=8),
    "longformer": dict(window=4),
    "modernbert": dict(window=4, global_every=2),
}


def small(name: str, **changes: Any) -> Config:
    """A small member without dropout."""
    plain = dict(dropout=0.0, attention_dropout=0.0)
    return Config(**SMALL | MEMBERS[name] | plain | CHANGES[name] | changes)


def counterpart(name: str, network: Any, architecture: str = "", task: str = "", **settings: Any) -> Any:
    """transformers' model of a class with the network's weights; every weight must find its place."""
    family, config = FAMILIES[name], network.encoder.config
    told = {key: value for key, value in families.write_config(config, family).items() if key != "model_type"} | settings
    told = dict(pad_token_id=0) | told
    kind = transformers.AutoConfig.for_model(family.name, **told)
    kind._attn_implementation = "eager"
    model = getattr(transformers, architecture or family.classes[()])(kind)
    tensors, rest = families.to_hugging_face(network.state_dict(), family, config.layers, task)
    assert not {ours for ours in rest if ours != "weights"}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(
        "pooler" in one or "decoder" in one or "projector.weight" in one or "lm_head.weight" in one for one in missing
    ), missing
    model.tie_weights()
    return model.train(network.training)
