"""The family as Hugging Face spells it: for each member its config keys, parameter names and classes, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertkit.bundle.families import Family, Head, Settings, Table
from bertkit.errors import ConfigError

KEYS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feedforward": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "init_std": "initializer_range",
}
SIZES = ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
PLAIN: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "add_cross_attention": (False, None),
    "is_decoder": (False, None),
    "quantization_config": (None,),
}


def _pair(ours: str, theirs: str) -> Table:
    """A weight and its bias."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


def _embeddings(theirs: str, norm: str = "LayerNorm") -> Table:
    tables = {"pieces": "word_embeddings", "segments": "token_type_embeddings", "positions": "position_embeddings"}
    named = {f"encoder.embeddings.{ours}.weight": f"{theirs}.{name}.weight" for ours, name in tables.items()}
    return {**named, **_pair("encoder.embeddings.norm", f"{theirs}.{norm}")}


def _qkv(layer: str, parts: tuple[str, str, str], ours: str = "qkv") -> Table:
    """Three maps that are stacked into one."""
    name = f"encoder.blocks.{{i}}.attention.{ours}"
    return {f"{name}.{kind}": tuple(f"{layer}.{part}.{kind}" for part in parts) for kind in ("weight", "bias")}


def _rest_of_block(layer: str, *theirs: str) -> Table:
    """Attention's output and its norm, then the feed-forward's two maps and its norm."""
    ours = ("attention.output", "attention_norm", "feedforward.input", "feedforward.output", "feedforward_norm")
    named = [_pair(f"encoder.blocks.{{i}}.{a}", f"{layer}.{b}") for a, b in zip(ours, theirs, strict=True)]
    return {name: theirs for table in named for name, theirs in table.items()}


def _body(prefix: str, query: tuple[str, str, str] = ("query", "key", "value")) -> Table:
    """As BERT's classes spell a body; most of the family does."""
    layer = f"{prefix}.encoder.layer.{{i}}"
    names = (
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    )
    return {**_embeddings(f"{prefix}.embeddings"), **_qkv(f"{layer}.attention.self", query), **_rest_of_block(layer, *names)}


def _masked(dense: str, norm: str, bias: str) -> Table:
    return {**_pair("masked.dense", dense), **_pair("masked.norm", norm), "masked.bias": bias}


def _heads(classes: str, pooler: str, *, output: str = "classifier", choice: str = "") -> Mapping[str, Head]:
    """The fine-tuned classes: what they call the last map, and the pooler before it."""
    pooled = Head(f"{classes}ForSequenceClassification", output, pooler)
    return {
        "classification": pooled,
        "multilabel": pooled,
        "regression": pooled,
        "tagging": Head(f"{classes}ForTokenClassification", "classifier"),
        "qa": Head(f"{classes}ForQuestionAnswering", "qa_outputs"),
        "choice": Head(f"{classes}ForMultipleChoice", "classifier", choice or pooler),
    }


def _without(settings: Settings, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _lm_head(classes: str, prefix: str) -> dict[str, Any]:
    """What RoBERTa and its like have on top."""
    return dict(
        pooler=f"{prefix}.pooler.dense",
        pretraining=_masked("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        decoder="lm_head.decoder",
        classes={("masked",): f"{classes}ForMaskedLM", (): f"{classes}Model"},
        heads=_heads(classes, "classifier.dense", output="classifier.out_proj", choice=f"{prefix}.pooler.dense"),
    )


BERT = Family(
    name="bert",
    keys=KEYS | {"causal": "is_decoder"},
    needed=SIZES,
    refused={key: values for key, values in PLAIN.items() if key != "is_decoder"},
    names=_body("bert"),
    prefix="bert.",
    pooler="bert.pooler.dense",
    pretraining={
        **_masked("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        **_pair("next.output", "cls.seq_relationship"),
    },
    decoder="cls.predictions.decoder",
    classes={
        ("masked", "next"): "BertForPreTraining",
        ("masked",): "BertForMaskedLM",
        ("next",): "BertForNextSentencePrediction",
        (): "BertModel",
        ("causal",): "BertLMHeadModel",
    },
    heads=_heads("Bert", "bert.pooler.dense"),
)


def _read_roberta(settings: Settings) -> Settings:
    """Positions begin behind the row of the piece that pads."""
    return {**settings, "first_position": settings.get("pad_token_id", 1) + 1}


def _write_roberta(settings: Settings) -> Settings:
    return _without(settings, "first_position") | {"pad_token_id": settings["first_position"] - 1}


ROBERTA = Family(
    name="roberta",
    keys=KEYS | {"first_position": "first_position"},
    needed=SIZES,
    refused=PLAIN,
    names=_body("roberta"),
    prefix="roberta.",
    read=_read_roberta,
    write=_write_roberta,
    **_lm_head("Roberta", "roberta"),
)

DISTILBERT = Family(
    name="distilbert",
    keys={
        "vocabulary": "vocab_size",
        "layers": "n_layers",
        "width": "dim",
        "heads": "n_heads",
        "feedforward": "hidden_dim",
        "positions": "max_position_embeddings",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "init_std": "initializer_range",
    },
    needed=("vocab_size", "n_layers", "dim", "n_heads", "hidden_dim"),
    refused=PLAIN,
    names={
        **_embeddings("distilbert.embeddings"),
        **_qkv("distilbert.transformer.layer.{i}.attention", ("q_lin", "k_lin", "v_lin")),
        **_rest_of_block(
            "distilbert.transformer.layer.{i}",
            *("attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
        ),
    },
    prefix="distilbert.",
    pretraining=_masked("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    decoder="vocab_projector",
    classes={("masked",): "DistilBertForMaskedLM", (): "DistilBertModel"},
    heads=_heads("DistilBert", "pre_classifier"),
)

_ALBERT = "albert.encoder.albert_layer_groups.0.albert_layers.0"
ALBERT = Family(
    name="albert",
    keys=KEYS | {"embedding": "embedding_size"},
    needed=(*SIZES, "embedding_size"),
    refused=PLAIN | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    constants={"num_hidden_groups": 1, "inner_group_num": 1},
    names={
        **_embeddings("albert.embeddings"),
        **_pair("encoder.embeddings.widen", "albert.encoder.embedding_hidden_mapping_in"),
        **_qkv(f"{_ALBERT}.attention", ("query", "key", "value")),
        **_rest_of_block(_ALBERT, "attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    },
    prefix="albert.",
    pooler="albert.pooler",
    pretraining={
        **_masked("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        **_pair("next.output", "sop_classifier.classifier"),
    },
    decoder="predictions.decoder",
    classes={("masked", "next"): "AlbertForPreTraining", ("masked",): "AlbertForMaskedLM", (): "AlbertModel"},
    heads=_heads("Albert", "albert.pooler"),
)


def _read_electra(settings: Settings) -> Settings:
    """Pieces as wide as the rest have no matrix behind them."""
    width = settings.get("embedding_size", 128)
    return {**settings, "embedding_size": 0 if width == settings.get("hidden_size") else width}


def _write_electra(settings: Settings) -> Settings:
    return {**settings, "embedding_size": settings["embedding_size"] or settings["hidden_size"]}


ELECTRA = Family(
    name="electra",
    keys=KEYS | {"embedding": "embedding_size"},
    needed=SIZES,
    refused=PLAIN,
    constants={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu", "summary_last_dropout": 0.1},
    names={**_body("electra"), **_pair("encoder.embeddings.widen", "electra.embeddings_project")},
    prefix="electra.",
    pretraining={
        **_masked("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
        **_pair("replaced.dense", "discriminator_predictions.dense"),
        **_pair("replaced.output", "discriminator_predictions.dense_prediction"),
    },
    decoder="generator_lm_head",
    classes={("replaced",): "ElectraForPreTraining", ("masked",): "ElectraForMaskedLM", (): "ElectraModel"},
    heads=_heads("Electra", "classifier.dense", output="classifier.out_proj", choice="sequence_summary.summary"),
    read=_read_electra,
    write=_write_electra,
)

DEBERTA = Family(
    name="deberta-v2",
    keys=KEYS | {"buckets": "position_buckets"},
    needed=(*SIZES, "position_buckets"),
    refused={
        "position_biased_input": (False,),
        "conv_kernel_size": (0, None),
        "max_relative_positions": (-1, 0, None),
        "embedding_size": (None,),
        "legacy": (True,),
    },
    required={
        "relative_attention": (True,),
        "share_att_key": (True,),
        "norm_rel_ebd": ("layer_norm",),
        "pos_att_type": (["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
    },
    constants={
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "max_relative_positions": -1,
        "pooler_hidden_act": "gelu",
        "legacy": True,
    },
    names={
        **_body("deberta", ("query_proj", "key_proj", "value_proj")),
        "encoder.positions.table.weight": "deberta.encoder.rel_embeddings.weight",
        **_pair("encoder.positions.norm", "deberta.encoder.LayerNorm"),
    },
    prefix="deberta.",
    pretraining=_masked("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    decoder="cls.predictions.decoder",
    classes={("masked",): "DebertaV2ForMaskedLM", (): "DebertaV2Model"},
    heads=_heads("DebertaV2", "pooler.dense"),
)


def _read_longformer(settings: Settings) -> Settings:
    windows = settings.get("attention_window", 512)
    found = {*windows} if isinstance(windows, list) else {windows}
    if len(found) != 1:
        raise ConfigError(f"attention_window is {windows}; expected one window for all layers")
    return {**_read_roberta(settings), "window": found.pop() // 2}


def _write_longformer(settings: Settings) -> Settings:
    windows = [2 * settings["window"]] * settings["num_hidden_layers"]
    return _without(_write_roberta(settings), "window") | {"attention_window": windows}


LONGFORMER = Family(
    name="longformer",
    keys=ROBERTA.keys | {"window": "window"},
    needed=SIZES,
    refused=PLAIN,
    names={
        **_body("longformer"),
        **_qkv("longformer.encoder.layer.{i}.attention.self", ("query_global", "key_global", "value_global"), "global_qkv"),
    },
    prefix="longformer.",
    read=_read_longformer,
    write=_write_longformer,
    **_lm_head("Longformer", "longformer"),
)


def _read_modern(settings: Settings) -> Settings:
    """Old and new spellings of which layers look everywhere, and of the two rotary bases."""
    kinds = settings.get("layer_types") or []
    whole = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    every = whole[1] if len(whole) > 1 else settings.get("global_attn_every_n_layers", len(kinds) or 3)
    if kinds and whole != [*range(0, len(kinds), every)]:
        raise ConfigError(f"layer_types is {kinds}; expected every n-th layer, from the first on, to be full_attention")
    bases = settings.get("rope_parameters") or {}
    old = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    default = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
    full, near = (float(bases.get(kind, {}).get("rope_theta", settings.get(old[kind]) or default[kind])) for kind in default)
    window = settings.get("local_attention", 128) // 2
    return {**settings, "window": window, "global_every": every, "rotary_base": full, "local_rotary_base": near}


def _write_modern(settings: Settings) -> Settings:
    flat = {key: settings[key] for key in ("window", "global_every", "rotary_base", "local_rotary_base")}
    layers, every = settings["num_hidden_layers"], flat["global_every"]
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    bases = {"full_attention": flat["rotary_base"], "sliding_attention": flat["local_rotary_base"]}
    return {
        **_without(settings, *flat),
        "local_attention": 2 * flat["window"],
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_attn_every_n_layers": every,  # and as it was spelled before
        "global_rope_theta": flat["rotary_base"],
        "local_rope_theta": flat["local_rotary_base"],
    }


_MODERN = "model.layers.{i}"
MODERNBERT = Family(
    name="modernbert",
    keys={
        **{ours: KEYS[ours] for ours in ("vocabulary", "layers", "width", "heads", "feedforward", "positions", "init_std")},
        **{name: name for name in ("window", "global_every", "rotary_base", "local_rotary_base", "attention_dropout")},
        "activation": "hidden_activation",
        "dropout": "mlp_dropout",
        "norm_epsilon": "norm_eps",
    },
    needed=SIZES,
    refused={
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,)),
        "decoder_bias": (True,),
        "classifier_pooling": ("cls",),
        "classifier_activation": ("gelu",),
    },
    names={
        "encoder.embeddings.pieces.weight": "model.embeddings.tok_embeddings.weight",
        "encoder.embeddings.norm.weight": "model.embeddings.norm.weight",
        "encoder.blocks.{i}.attention.qkv.weight": f"{_MODERN}.attn.Wqkv.weight",
        "encoder.blocks.{i}.attention.output.weight": f"{_MODERN}.attn.Wo.weight",
        "encoder.blocks.{i}.attention_norm.weight": f"{_MODERN}.attn_norm.weight",
        "encoder.blocks.{i}.feedforward.input.weight": f"{_MODERN}.mlp.Wi.weight",
        "encoder.blocks.{i}.feedforward.output.weight": f"{_MODERN}.mlp.Wo.weight",
        "encoder.blocks.{i}.feedforward_norm.weight": f"{_MODERN}.mlp_norm.weight",
        "encoder.norm.weight": "model.final_norm.weight",
    },
    prefix="model.",
    pretraining={
        "masked.dense.weight": "head.dense.weight",
        "masked.norm.weight": "head.norm.weight",
        "masked.bias": "decoder.bias",
    },
    decoder="decoder",
    classes={("masked",): "ModernBertForMaskedLM", (): "ModernBertModel"},
    heads={
        task: replace(head, output="classifier", pooler="head.dense", norm="head.norm")
        for task, head in _heads("ModernBert", "").items()
    },
    read=_read_modern,
    write=_write_modern,
)

FAMILIES = {family.name: family for family in (BERT, ROBERTA, DISTILBERT, ALBERT, ELECTRA, DEBERTA, LONGFORMER, MODERNBERT)}


def family_of(settings: Settings) -> Family:
    """The family that a config.json names; one without model_type, as Google's are, is BERT."""
    name = str(settings.get("model_type", "bert"))
    if name not in FAMILIES:
        raise ConfigError(f"model_type is {name!r}, which is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[name]
