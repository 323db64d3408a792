"""Tables for each member of the family: Hugging Face's config keys, parameter names and classes."""

from collections.abc import Mapping
from typing import Any

from bertkit.bundle.families import KEYS, PLAIN, PROBLEMS, Family, Head, Settings, Table, pair
from bertkit.errors import ConfigError


def _embeddings(theirs: str) -> Table:
    tables = {"pieces": "word_embeddings", "segments": "token_type_embeddings", "positions": "position_embeddings"}
    named: Table = {f"encoder.embeddings.{ours}.weight": (f"{theirs}.{name}.weight",) for ours, name in tables.items()}
    return named | pair("encoder.embeddings.norm", f"{theirs}.LayerNorm")


def _qkv(layer: str, parts: tuple[str, str, str], ours: str = "qkv") -> Table:
    """Three linear layers that we stack into one."""
    name = f"encoder.blocks.{{i}}.attention.{ours}"
    return {f"{name}.{kind}": tuple(f"{layer}.{part}.{kind}" for part in parts) for kind in ("weight", "bias")}


def _rest_of_block(layer: str, *theirs: str) -> Table:
    """Attention's output and norm, then the feed-forward's two linear layers and norm."""
    ours = ("attention.output", "attention_norm", "feedforward.input", "feedforward.output", "feedforward_norm")
    named = [pair(f"encoder.blocks.{{i}}.{a}", f"{layer}.{b}") for a, b in zip(ours, theirs, strict=True)]
    return {name: theirs for table in named for name, theirs in table.items()}


def _body(prefix: str, query: tuple[str, str, str] = ("query", "key", "value")) -> Table:
    """The encoder's names in BERT's classes, shared by most of the family."""
    layer = f"{prefix}.encoder.layer.{{i}}"
    attention, output = ("attention.output.dense", "attention.output.LayerNorm"), ("output.dense", "output.LayerNorm")
    rest = _rest_of_block(layer, *attention, "intermediate.dense", *output)
    return _embeddings(f"{prefix}.embeddings") | _qkv(f"{layer}.attention.self", query) | rest


def _masked(dense: str, norm: str, bias: str) -> Table:
    return pair("masked.dense", dense) | pair("masked.norm", norm) | {"masked.bias": (bias,)}


def _task_head(output: str, pooler: str) -> Table:
    """A task's output layer, and the pooler before it."""
    return pair("output", output) | pair("encoder.pooler.dense", pooler)


def _heads(classes: str, pooler: str, *, output: str = "classifier", choice: str = "") -> Mapping[str, Head]:
    """The fine-tuned classes, with their names for the output layer and the pooler before it."""
    pooled = Head(f"{classes}ForSequenceClassification", _task_head(output, pooler))
    return {
        **dict.fromkeys(PROBLEMS, pooled),
        "tagging": Head(f"{classes}ForTokenClassification", pair("output", "classifier")),
        "qa": Head(f"{classes}ForQuestionAnswering", pair("output", "qa_outputs")),
        "choice": Head(f"{classes}ForMultipleChoice", _task_head("classifier", choice or pooler)),
    }


def _classes(name: str, **more: str) -> Mapping[tuple[str, ...], str]:
    """The classes with no head, with the masked head, and with others."""
    others = {tuple(heads.split("_")): f"{name}{theirs}" for heads, theirs in more.items()}
    return {(): f"{name}Model", ("masked",): f"{name}ForMaskedLM", **others}


def _without(settings: Settings, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _lm_head(classes: str, prefix: str) -> dict[str, Any]:
    """The heads of RoBERTa and of models derived from it."""
    pooler = f"{prefix}.pooler.dense"
    return dict(
        pretraining=_masked("lm_head.dense", "lm_head.layer_norm", "lm_head.bias") | pair("encoder.pooler.dense", pooler),
        decoder="lm_head.decoder",
        classes=_classes(classes),
        heads=_heads(classes, "classifier.dense", output="classifier.out_proj", choice=pooler),
    )


BERT = Family(
    name="bert",
    keys=KEYS | {"causal": "is_decoder"},
    refused=_without(PLAIN, "is_decoder"),
    names=_body("bert"),
    pretraining=_masked("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
    | pair("encoder.pooler.dense", "bert.pooler.dense")
    | pair("next.output", "cls.seq_relationship"),
    decoder="cls.predictions.decoder",
    classes=_classes("Bert", masked_next="ForPreTraining", next="ForNextSentencePrediction", causal="LMHeadModel"),
    heads=_heads("Bert", "bert.pooler.dense"),
)


def _read_roberta(settings: Settings) -> Settings:
    """Positions are counted from the row after the padding id's."""
    return {**settings, "first_position": settings.get("pad_token_id", 1) + 1}


def _write_roberta(settings: Settings) -> Settings:
    return _without(settings, "first_position") | {"pad_token_id": settings["first_position"] - 1}


def _roberta(name: str, classes: str) -> Family:
    """RoBERTa under each name that it goes by; its descendants differ in their vocabularies alone."""
    keys = KEYS | {"first_position": "first_position"}
    how: dict[str, Any] = dict(read=_read_roberta, write=_write_roberta, **_lm_head(classes, "roberta"))
    return Family(name=name, keys=keys, names=_body("roberta"), **how)


ROBERTA = _roberta("roberta", "Roberta")
XLM_ROBERTA, CAMEMBERT = _roberta("xlm-roberta", "XLMRoberta"), _roberta("camembert", "Camembert")

_DISTILBERT = "distilbert.transformer.layer.{i}"
DISTILBERT = Family(
    name="distilbert",
    keys=_without(KEYS, "segments", "norm_epsilon")
    | {name: name for name in ("activation", "dropout", "attention_dropout")}
    | dict(layers="n_layers", width="dim", heads="n_heads", feedforward="hidden_dim"),
    names=_embeddings("distilbert.embeddings")
    | _qkv(f"{_DISTILBERT}.attention", ("q_lin", "k_lin", "v_lin"))
    | _rest_of_block(_DISTILBERT, "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    pretraining=_masked("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    decoder="vocab_projector",
    classes=_classes("DistilBert"),
    heads=_heads("DistilBert", "pre_classifier"),
)

_ALBERT = "albert.encoder.albert_layer_groups.0.albert_layers.0"
ALBERT = Family(
    name="albert",
    keys=KEYS | {"embedding": "embedding_size"},
    needed=("embedding_size",),
    refused=PLAIN | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    names=_embeddings("albert.embeddings")
    | pair("encoder.embeddings.widen", "albert.encoder.embedding_hidden_mapping_in")
    | _qkv(f"{_ALBERT}.attention", ("query", "key", "value"))
    | _rest_of_block(_ALBERT, "attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    pretraining=_masked("predictions.dense", "predictions.LayerNorm", "predictions.bias")
    | pair("encoder.pooler.dense", "albert.pooler")
    | pair("next.output", "sop_classifier.classifier"),
    decoder="predictions.decoder",
    classes=_classes("Albert", masked_next="ForPreTraining"),
    heads=_heads("Albert", "albert.pooler"),
)


def _read_electra(settings: Settings) -> Settings:
    """Embeddings of the model's own width need no projection; ours is then 0."""
    width = settings.get("embedding_size", 128)
    return {**settings, "embedding_size": 0 if width == settings.get("hidden_size") else width}


def _write_electra(settings: Settings) -> Settings:
    return {**settings, "embedding_size": settings["embedding_size"] or settings["hidden_size"]}


ELECTRA = Family(
    name="electra",
    keys=KEYS | {"embedding": "embedding_size"},
    refused=PLAIN | dict(summary_type=("first",), summary_use_proj=(True,), summary_activation=("gelu",)),
    names=_body("electra") | pair("encoder.embeddings.widen", "electra.embeddings_project"),
    pretraining=_masked("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias")
    | pair("replaced.dense", "discriminator_predictions.dense")
    | pair("replaced.output", "discriminator_predictions.dense_prediction"),
    decoder="generator_lm_head",
    classes=_classes("Electra", replaced="ForPreTraining"),
    heads=_heads("Electra", "classifier.dense", output="classifier.out_proj", choice="sequence_summary.summary"),
    read=_read_electra,
    write=_write_electra,
)

DEBERTA = Family(
    name="deberta-v2",
    keys=KEYS | {"buckets": "position_buckets"},
    needed=("position_buckets",),
    refused=dict(conv_kernel_size=(0, None), max_relative_positions=(-1, 0, None), embedding_size=(None,))
    | dict(legacy=(True,), pooler_hidden_act=("gelu",)),
    required=dict(relative_attention=(True,), position_biased_input=(False,), share_att_key=(True,))
    | dict(norm_rel_ebd=("layer_norm",), pos_att_type=(["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c")),
    names=_body("deberta", ("query_proj", "key_proj", "value_proj"))
    | {"encoder.positions.table.weight": ("deberta.encoder.rel_embeddings.weight",)}
    | pair("encoder.positions.norm", "deberta.encoder.LayerNorm"),
    pretraining=_masked("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    decoder="cls.predictions.decoder",
    classes=_classes("DebertaV2"),
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
    names=_body("longformer")
    | _qkv("longformer.encoder.layer.{i}.attention.self", ("query_global", "key_global", "value_global"), "global_qkv"),
    read=_read_longformer,
    write=_write_longformer,
    **_lm_head("Longformer", "longformer"),
)


def _read_modern(settings: Settings) -> Settings:
    """Reads the old and new spellings of which layers have global attention, and of the two rotary bases."""
    kinds = settings.get("layer_types") or []
    whole = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    usual = settings.get("global_attn_every_n_layers", len(kinds) or 3) if whole or not kinds else 0
    every = whole[1] if len(whole) > 1 else usual
    if whole and whole != [*range(0, len(kinds), every)]:
        raise ConfigError(f"layer_types is {kinds}; expected every n-th layer, from the first on, to be full_attention")
    bases = settings.get("rope_parameters") or {}
    if any(told.get("rope_type", "default") != "default" for told in bases.values()):
        raise ConfigError(f"rope_parameters is {bases}; expected rope_type default")
    old = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
    usual = {kind: settings.get(key) or default for kind, (key, default) in old.items()}
    full, near = (float(bases.get(kind, {}).get("rope_theta", base)) for kind, base in usual.items())
    if (window := settings.get("local_attention", 128) // 2) < 1:
        raise ConfigError(f"local_attention is {settings['local_attention']}, which is not supported; expected 2 at least")
    return {**settings, "window": window, "global_every": every, "rotary_base": full, "local_rotary_base": near}


def _write_modern(settings: Settings) -> Settings:
    flat = {key: settings[key] for key in ("window", "global_every", "rotary_base", "local_rotary_base")}
    every = flat["global_every"] if flat["window"] else 1  # without a window, all layers are global
    near = [every == 0 or i % every > 0 for i in range(settings["num_hidden_layers"])]
    bases = {"full_attention": flat["rotary_base"], "sliding_attention": flat["local_rotary_base"]}
    return {
        **_without(settings, *flat),
        "local_attention": 2 * flat["window"] or 128,
        "layer_types": ["sliding_attention" if one else "full_attention" for one in near],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_attn_every_n_layers": every,  # the old spelling
        "global_rope_theta": flat["rotary_base"],
        "local_rope_theta": flat["local_rotary_base"],
    }


def _unbiased(table: Table) -> Table:
    return {ours: theirs for ours, theirs in table.items() if ours.endswith(".weight")}


_MODERN_TOP = _task_head("classifier", "head.dense") | pair("encoder.pooler.norm", "head.norm")
MODERNBERT = Family(
    name="modernbert",
    keys=_without(KEYS, "segments")
    | {name: name for name in ("window", "global_every", "rotary_base", "local_rotary_base", "attention_dropout")}
    | dict(activation="hidden_activation", dropout="mlp_dropout", norm_epsilon="norm_eps", summary_of="classifier_pooling"),
    refused=dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,))
    | dict(decoder_bias=(True,), classifier_activation=("gelu",), rope_scaling=(None,)),
    names=_unbiased(
        pair("encoder.embeddings.pieces", "model.embeddings.tok_embeddings")
        | pair("encoder.embeddings.norm", "model.embeddings.norm")
        | pair("encoder.blocks.{i}.attention.qkv", "model.layers.{i}.attn.Wqkv")
        | _rest_of_block("model.layers.{i}", "attn.Wo", "attn_norm", "mlp.Wi", "mlp.Wo", "mlp_norm")
        | pair("encoder.norm", "model.final_norm")
    ),
    pretraining=_unbiased(_masked("head.dense", "head.norm", "")) | {"masked.bias": ("decoder.bias",)},
    decoder="decoder",
    classes=_classes("ModernBert"),
    heads={task: Head(one.name, _MODERN_TOP) for task, one in _heads("ModernBert", "head.dense").items()},
    read=_read_modern,
    write=_write_modern,
)

ALL = BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ALBERT, ELECTRA, DEBERTA, LONGFORMER, MODERNBERT
FAMILIES = {family.name: family for family in ALL}


def family_of(settings: Settings) -> Family:
    """Returns the family that a config.json names; without model_type, as in Google's, it is BERT."""
    name = str(settings.get("model_type", "bert"))
    if name not in FAMILIES:
        raise ConfigError(f"model_type is {name!r}, which is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[name]
