"""How Hugging Face spells each family: its config.json and its parameter names, one table each, read both ways."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bertkit.errors import ArtifactError, ConfigError
from bertkit.model.config import Config
from bertkit.tasks.task import TaskSettings


@dataclass(frozen=True)
class Family:
    """A kind of encoder as Hugging Face knows it."""

    name: str  # model_type
    keys: Mapping[str, str]  # our setting → their key
    needed: tuple[str, ...]  # keys without which there is no model
    activations: Mapping[str, str]  # their value → ours; the first of two with one meaning is the one we write
    refused: Mapping[str, tuple[Any, ...]]  # keys that change the computation → the values that leave it ours
    names: Mapping[str, str | tuple[str, ...]]  # our parameter → theirs; several are stacked along the first axis
    prefix: str  # what their heads' files put before the body's names
    architectures: Mapping[tuple[bool, bool], str]  # (masked head, next-sentence head) → class
    causal_architecture: str  # the class of a left-to-right model with a head over pieces
    heads: Mapping[str, tuple[str, str]]  # task → class, and what it calls the last linear map


_LAYER = "bert.encoder.layer.{i}"


def _pair(ours: str, theirs: str) -> dict[str, str]:
    """A weight and its bias."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


BERT = Family(
    name="bert",
    keys={
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
        "causal": "is_decoder",
    },
    needed=("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    activations={
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    refused={
        "position_embedding_type": ("absolute", None),
        "add_cross_attention": (False, None),
        "quantization_config": (None,),
    },
    names={
        "encoder.embeddings.pieces.weight": "bert.embeddings.word_embeddings.weight",
        "encoder.embeddings.segments.weight": "bert.embeddings.token_type_embeddings.weight",
        "encoder.embeddings.positions.weight": "bert.embeddings.position_embeddings.weight",
        **_pair("encoder.embeddings.norm", "bert.embeddings.LayerNorm"),
        **{
            f"encoder.blocks.{{i}}.attention.qkv.{part}": tuple(
                f"{_LAYER}.attention.self.{name}.{part}" for name in ("query", "key", "value")
            )
            for part in ("weight", "bias")
        },
        **_pair("encoder.blocks.{i}.attention.output", f"{_LAYER}.attention.output.dense"),
        **_pair("encoder.blocks.{i}.attention_norm", f"{_LAYER}.attention.output.LayerNorm"),
        **_pair("encoder.blocks.{i}.feedforward.input", f"{_LAYER}.intermediate.dense"),
        **_pair("encoder.blocks.{i}.feedforward.output", f"{_LAYER}.output.dense"),
        **_pair("encoder.blocks.{i}.feedforward_norm", f"{_LAYER}.output.LayerNorm"),
        **_pair("encoder.pooler.dense", "bert.pooler.dense"),
        **_pair("masked.dense", "cls.predictions.transform.dense"),
        **_pair("masked.norm", "cls.predictions.transform.LayerNorm"),
        "masked.bias": "cls.predictions.bias",
        **_pair("next.output", "cls.seq_relationship"),
    },
    prefix="bert.",
    architectures={
        (True, True): "BertForPreTraining",
        (True, False): "BertForMaskedLM",
        (False, True): "BertForNextSentencePrediction",
        (False, False): "BertModel",
    },
    causal_architecture="BertLMHeadModel",
    heads={
        "classification": ("BertForSequenceClassification", "classifier"),
        "multilabel": ("BertForSequenceClassification", "classifier"),
        "regression": ("BertForSequenceClassification", "classifier"),
        "tagging": ("BertForTokenClassification", "classifier"),
        "qa": ("BertForQuestionAnswering", "qa_outputs"),
        "choice": ("BertForMultipleChoice", "classifier"),
    },
)
PROBLEMS = {  # tasks that share a class
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}

FAMILIES = {family.name: family for family in (BERT,)}


def family_of(settings: Mapping[str, Any]) -> Family:
    """The family that a config.json names; one without model_type, as Google's are, is BERT."""
    name = str(settings.get("model_type", "bert"))
    if name not in FAMILIES:
        raise ConfigError(f"model_type is {name!r}, which is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def read_config(settings: Mapping[str, Any], family: Family) -> Config:
    """Our configuration from a config.json. Keys that are not in the table are not read."""
    _check_keys(settings, family)
    for key, harmless in family.refused.items():
        if key in settings and settings[key] not in harmless:
            raise ConfigError(f"{key} is {settings[key]!r}, which is not supported; expected {harmless[0]!r}")
    values = {ours: settings[theirs] for ours, theirs in family.keys.items() if theirs in settings}
    activation = str(values.get("activation", "gelu"))
    if activation not in family.activations:
        raise ConfigError(f"hidden_act is {activation!r}; expected one of {', '.join(family.activations)}")
    try:
        return Config(**values | {"activation": family.activations[activation]})
    except ConfigError as error:  # in the words of the file
        names = "|".join(family.keys)
        spelled = re.sub(rf"^({names})\b", lambda match: family.keys[match[0]], str(error))
        raise ConfigError(spelled) from error


def write_config(config: Config, family: Family) -> dict[str, Any]:
    """The settings of config.json that our configuration determines."""
    settings = {family.keys[f.name]: getattr(config, f.name) for f in fields(config) if f.name in family.keys}
    spelled = {ours: theirs for theirs, ours in reversed([*family.activations.items()])}
    return {"model_type": family.name, **settings, family.keys["activation"]: spelled[config.activation]}


def read_task(settings: Mapping[str, Any], family: Family) -> TaskSettings | None:
    """The task of a fine-tuned model that transformers saved; None for any other."""
    names = settings.get("architectures") or [""]
    tasks = [task for task, (name, _) in family.heads.items() if name == names[0]]
    if not tasks:
        return None
    labels = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    ordered = tuple(str(labels[key]) for key in sorted(labels, key=int))
    told = [task for task in tasks if PROBLEMS.get(task) == settings.get("problem_type")]
    task = told[0] if told else "regression" if tasks[0] == "classification" and len(ordered) == 1 else tasks[0]
    return TaskSettings(task=task, labels=() if task in ("qa", "choice") else ordered)


def write_task(task: TaskSettings, family: Family) -> dict[str, Any]:
    """The settings of config.json that a task determines."""
    numbered = {str(index): label for index, label in enumerate(task.labels)}
    settings = {"id2label": numbered, "label2id": {v: int(k) for k, v in numbered.items()}} if task.labels else {}
    problem = {"problem_type": PROBLEMS[task.task]} if task.task in PROBLEMS else {}
    return {"architectures": [family.heads[task.task][0]], **settings, **problem}


def from_hugging_face(
    tensors: Mapping[str, Tensor], family: Family, layers: int, task: str = ""
) -> tuple[dict[str, Tensor], list[str]]:
    """Our parameters from theirs, and the names that were left over. What is absent here is simply absent there."""
    rest = {_modern_name(name, family): tensor for name, tensor in tensors.items()}
    _untie(rest)
    state = dict[str, Tensor]()
    for ours, theirs in _expanded(family, layers, task).items():
        if all(name in rest for name in theirs):
            parts = [rest.pop(name) for name in theirs]
            state[ours] = parts[0] if len(parts) == 1 else _stack(parts, theirs)
    return state, sorted(rest)


def to_hugging_face(
    state: Mapping[str, Tensor], family: Family, layers: int, task: str = ""
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Their parameters from ours, and ours that they have no name for. Without their heads, names go without prefix."""
    tensors, rest = dict[str, Tensor](), dict(state)
    for ours, theirs in _expanded(family, layers, task).items():
        if ours in rest:
            parts = rest.pop(ours).chunk(len(theirs))
            tensors |= {name: part.detach().cpu().contiguous() for name, part in zip(theirs, parts, strict=True)}
    if all(name.startswith(family.prefix) for name in tensors):
        tensors = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    return tensors, rest


def spelled(ours: str, family: Family, layers: int, task: str = "") -> str:
    """Their name for one of our parameters, for messages."""
    return ", ".join(_expanded(family, layers, task).get(ours, (ours,)))


def _expanded(family: Family, layers: int, task: str = "") -> dict[str, tuple[str, ...]]:
    """The table of names with each layer written out, and with the task's head."""
    table = dict[str, tuple[str, ...]]()
    head = _pair("output", family.heads[task][1]) if task in family.heads else {}
    for ours, theirs in {**family.names, **head}.items():
        several = (theirs,) if isinstance(theirs, str) else theirs
        for i in range(layers if "{i}" in ours else 1):
            table[ours.format(i=i)] = tuple(name.format(i=i) for name in several)
    return table


def _modern_name(name: str, family: Family) -> str:
    """Spells an old or headless name as the table does."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    body = ("embeddings.", "encoder.", "pooler.")
    return family.prefix + name if name.startswith(body) else name


def _untie(tensors: dict[str, Tensor]) -> None:
    """Drops copies that older files carry of the tied decoder, and constants that were once saved."""
    tensors.pop("bert.embeddings.position_ids", None)
    tensors.pop("bert.embeddings.token_type_ids", None)
    bias = tensors.pop("cls.predictions.decoder.bias", None)
    if bias is not None:
        tensors.setdefault("cls.predictions.bias", bias)
    decoder, pieces = (
        tensors.pop("cls.predictions.decoder.weight", None),
        tensors.get("bert.embeddings.word_embeddings.weight"),
    )
    if decoder is not None and pieces is not None and not torch.equal(decoder, pieces):
        raise ArtifactError(
            "cls.predictions.decoder.weight differs from the word embeddings; "
            "a decoder of its own is not supported, expected one tied to the embeddings"
        )


def _stack(parts: list[Tensor], names: tuple[str, ...]) -> Tensor:
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in zip(names, parts, strict=True))
        raise ArtifactError(f"query, key and value differ in shape: {shapes}; expected one shape")
    return torch.cat(parts)


def _check_keys(settings: Mapping[str, Any], family: Family) -> None:
    """Refuses a config that lacks a size, or spells a setting almost right: it would be missed without a word."""
    known = {*family.keys.values(), *family.refused}
    for key in set(settings) - known:
        close = difflib.get_close_matches(key, known - set(settings), n=1, cutoff=0.9)
        if close:
            raise ConfigError(f'unknown setting "{key}" (did you mean "{close[0]}"?); correct or remove it')
    if missing := [key for key in family.needed if key not in settings]:
        raise ConfigError(f"the config has no {', '.join(missing)}; expected a {family.name} config with its sizes")
