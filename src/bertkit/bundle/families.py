"""Translates Hugging Face's config.json and parameter names into ours and back, for each member of the family.

The tables, one per member, are in bundle/members.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ArtifactError, ConfigError, check_choice, did_you_mean
from bertkit.model.config import MEMBERS, Config
from bertkit.tasks.task import TaskSettings

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, Tensor]  # by parameter name

Settings = Mapping[str, Any]  # of a config.json
Table = dict[str, tuple[str, ...]]  # our parameter → theirs; several are stacked along the first axis


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
PLAIN: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "add_cross_attention": (False, None),
    "is_decoder": (False, None),
}
QUANTIZED = {"quantization_config": (None,)}  # quantized weights are not supported in any family


@dataclass(frozen=True)
class Head:
    """The transformers class of a fine-tuned model, and the parameter names of its head."""

    name: str
    names: Table


@dataclass(frozen=True, kw_only=True)
class Family:
    """A member of the family, as Hugging Face defines it."""

    name: str  # model_type
    keys: dict[str, str]  # our setting → their key
    needed: tuple[str, ...] = ()  # keys required besides the sizes
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: PLAIN)  # key → the values accepted
    names: Table  # of the encoder
    pretraining: Table  # of the pooler and the pre-training heads
    decoder: str  # the output layer whose weight is tied to the piece embeddings
    classes: Mapping[tuple[str, ...], str]  # heads present → class
    heads: Mapping[str, Head]  # task → class
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # key that must be present → the values accepted
    read: Callable[[Settings], Settings] = dict  # from their settings to the keys of the table
    write: Callable[[Settings], Settings] = dict  # and back

    @property
    def prefix(self) -> str:
        """The prefix of the encoder's parameters in models with a head, such as "bert."."""
        return self.names["encoder.embeddings.pieces.weight"][0].split(".")[0] + "."


ACTIVATIONS = {  # their name → ours; of several names for the same function the first is written
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
PROBLEMS = {  # problem_type, for the tasks that share a class
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_config(settings: Settings, family: Family) -> Config:
    """Returns our configuration for a config.json. Keys that are not in the table are ignored."""
    _check_keys(settings, family)
    settings = family.read(settings)
    values = {ours: settings[theirs] for ours, theirs in family.keys.items() if theirs in settings}
    if "activation" in values:
        check_choice(family.keys["activation"], str(values["activation"]), ACTIVATIONS, ConfigError)
        values["activation"] = ACTIVATIONS[str(values["activation"])]
    values = {**MEMBERS[family.name], **values}  # our defaults, for keys that the config leaves out
    if isinstance(values.get("positions"), int):
        values["positions"] -= values.get("first_position", 0)
    try:
        return Config(**values)
    except ConfigError as error:  # with the setting's name in the file
        names = "|".join(family.keys)
        spelled = re.sub(rf"^({names})\b", lambda match: family.keys[match[0]], str(error))
        raise ConfigError(spelled) from error


def write_config(config: Config, family: Family) -> dict[str, Any]:
    """Returns the settings of config.json that our configuration determines."""
    settings = {family.keys[f.name]: getattr(config, f.name) for f in fields(config) if f.name in family.keys}
    spelled = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    settings[family.keys["activation"]] = spelled[config.activation]
    settings[family.keys["positions"]] += config.first_position
    fixed = {key: values[0] for key, values in {**family.refused, **family.required}.items() if values[0] is not None}
    return {"model_type": family.name, **fixed, **family.write(settings)}


def read_task(settings: Settings, family: Family, positions: int) -> TaskSettings | None:
    """Returns the task of a model fine-tuned with transformers, at the model's full length; None for other models."""
    names = settings.get("architectures") or [""]
    if not isinstance(names, list):
        raise ConfigError(f"architectures is {names!r}; expected a list")
    tasks = [task for task, head in family.heads.items() if head.name == names[0]]
    if not tasks:
        return None
    labels = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    ordered = tuple(str(labels[key]) for key in sorted(labels, key=int))
    told = [task for task in tasks if PROBLEMS.get(task) == settings.get("problem_type")]
    task = told[0] if told else "regression" if tasks[0] == "classification" and len(ordered) == 1 else tasks[0]
    if task == "regression" and len(ordered) != 1:
        raise ConfigError(f"problem_type is regression with {len(ordered)} labels, which is not supported; expected one")
    if len({*ordered}) < len(ordered):
        raise ConfigError(f"id2label is {labels}, where several share a name; expected a name of its own for each")
    return TaskSettings(task=task, labels=() if task in ("qa", "choice") else ordered, max_length=positions)


def write_task(task: TaskSettings, family: Family) -> dict[str, Any]:
    """Returns the settings of config.json that a task determines."""
    numbered = dict(enumerate(task.labels))
    settings = {"id2label": numbered, "label2id": {label: index for index, label in numbered.items()}} if numbered else {}
    problem = {"problem_type": PROBLEMS[task.task]} if task.task in PROBLEMS else {}
    return {"architectures": [family.heads[task.task].name], **settings, **problem}


def from_hugging_face(tensors: Tensors, family: Family, layers: int, task: str = "") -> tuple[Tensors, list[str]]:
    """Returns our parameters from theirs, as far as they are there, and the names that were left over."""
    rest = {_modern_name(name, family): tensor for name, tensor in tensors.items()}
    _untie(rest, family)
    state: Tensors = {}
    for ours, theirs in names_of(family, layers, task).items():
        if all(name in rest for name in theirs):
            parts = [rest.pop(name) for name in theirs]
            state[ours] = parts[0] if len(parts) == 1 else _stack(parts, theirs)
    return state, sorted(rest)


def to_hugging_face(state: Tensors, family: Family, layers: int, task: str = "") -> tuple[Tensors, Tensors]:
    """Returns their parameters from ours, and ours that they have no name for. Without heads, names have no prefix."""
    tensors: Tensors = {}
    rest = dict(state)
    for ours, theirs in names_of(family, layers, task).items():
        if ours in rest:
            tensors |= zip(theirs, rest.pop(ours).chunk(len(theirs)), strict=True)
    if all(name.startswith(family.prefix) for name in tensors):
        tensors = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    return tensors, rest


def names_of(family: Family, layers: int, task: str = "") -> Table:
    """Returns the table of names with every layer spelled out, with the task's head or the pre-training heads."""
    top = family.heads[task].names if task in family.heads else family.pretraining
    table: Table = {}
    for ours, theirs in (family.names | top).items():
        for i in range(layers if "{i}" in ours else 1):
            table[ours.format(i=i)] = tuple(name.format(i=i) for name in theirs)
    return table


def pair(ours: str, theirs: str) -> Table:
    """Returns the table for a layer's weight and bias."""
    return {f"{ours}.{part}": (f"{theirs}.{part}",) for part in ("weight", "bias")}


def _modern_name(name: str, family: Family) -> str:
    """Translates an old name, or one without the prefix, into the table's."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    known = [theirs for several in (family.names | family.pretraining).values() for theirs in several]
    body = {theirs.split(".")[1] for theirs in known if theirs.startswith(family.prefix)}
    return family.prefix + name if name.split(".")[0] in body else name


def _untie(tensors: Tensors, family: Family) -> None:
    """Drops the copies of the tied decoder and the constant buffers that older files contain."""
    for name in ("position_ids", "token_type_ids"):
        tensors.pop(f"{family.prefix}embeddings.{name}", None)
    own, bias = f"{family.decoder}.bias", family.pretraining["masked.bias"][0]
    if own != bias and own in tensors:
        tensors.setdefault(bias, tensors.pop(own))
    decoder = tensors.pop(f"{family.decoder}.weight", None)
    pieces = tensors.get(family.names["encoder.embeddings.pieces.weight"][0])
    if decoder is not None and pieces is not None and not decoder.equal(pieces):
        unlike = f"{family.decoder}.weight differs from the word embeddings"
        raise ArtifactError(f"{unlike}; a decoder of its own is not supported, expected one tied to the embeddings")


def _stack(parts: list[Tensor], names: tuple[str, ...]) -> Tensor:
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in zip(names, parts, strict=True))
        raise ArtifactError(f"query, key and value differ in shape: {shapes}; expected one shape")
    import torch  # imported here, as reading a config must not need torch

    return torch.cat(parts)


def _check_keys(settings: Settings, family: Family) -> None:
    """Refuses a config with missing sizes, unsupported values, or misspelled keys, which would be silently ignored."""
    known = {*family.keys.values(), *family.refused, *family.required}
    for key in set(settings) - known:
        if meant := did_you_mean(key, known - set(settings), cutoff=0.9):
            raise ConfigError(f'unknown setting "{key}"{meant}; correct or remove it')
    sizes = [family.keys[ours] for ours in ("vocabulary", "layers", "width", "heads", "feedforward")]
    if missing := [key for key in (*sizes, *family.needed, *family.required) if key not in settings]:
        raise ConfigError(f"the config has no {', '.join(missing)}; expected a {family.name} config with its sizes")
    for key, harmless in {**QUANTIZED, **family.refused, **family.required}.items():
        if key in settings and settings[key] not in harmless:
            raise ConfigError(f"{key} is {settings[key]!r}, which is not supported; expected {harmless[0]!r}")
