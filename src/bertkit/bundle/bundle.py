"""The artifact: a folder that Hugging Face reads, with bertkit.json for what their files have no place for.

    config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  bertkit.json

Also reads folders written by any version of transformers, and Google's TensorFlow checkpoints.
"""

import logging
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit import __version__
from bertkit.atomic import new_folder, read_json
from bertkit.bundle import families, google
from bertkit.bundle.folder import Bundle, read_facts
from bertkit.bundle.hub import find_model
from bertkit.bundle.sentences import write_pooling
from bertkit.errors import ArtifactError, InputError
from bertkit.model.config import Config
from bertkit.model.init import Unfilled
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import Task, TaskSettings

log = logging.getLogger("bertkit")


def load_bundle(name: Path | str) -> Bundle:
    """Reads a model folder, a TensorFlow checkpoint or a hub model; weights become fp32 on the CPU."""
    path = find_model(name)
    facts = read_facts(path)
    config, family, task = facts.config, facts.family, facts.task
    weights, tensors = _read_weights(path)
    tokenizer = facts.read_tokenizer()
    try:
        state, left_over = families.from_hugging_face(tensors, family, config.layers, _head(task))
        state |= _read_safetensors(head) if (head := path / "head.safetensors").is_file() else {}
        segments = "encoder.embeddings.segments.weight"
        if segments in state and not tokenizer.tells_segments:  # only the first row is ever used
            config, state[segments] = config.with_(segments=1), state[segments][:1]
        network = _build(config, state, family, task)
    except ArtifactError as error:
        raise ArtifactError(f"{weights}: {error}") from error
    if left_over:
        log.warning("%s: left over, not part of this model: %s", weights, ", ".join(left_over))
    provenance = facts.provenance or {"source": str(name), "left_over": left_over}
    return Bundle(network, tokenizer, family, provenance, task)


def save_bundle(bundle: Bundle, folder: Path | str, *, half: bool = False) -> None:
    """Writes the artifact, completely or not at all; with `half`, in fp16."""
    network, task = bundle.network, bundle.task
    if (kind := next(network.parameters()).dtype) != torch.float32:
        raise InputError(f"the model was loaded in {kind}, which rounded its weights; load it in fp32 to save it")
    state = {name: tensor.detach().float().cpu().contiguous() for name, tensor in network.state_dict().items()}
    spelled = families.to_hugging_face(state, bundle.family, network.encoder.config.layers, _head(task))
    tensors, rest = map(_halved, spelled) if half else spelled
    with new_folder(folder, marker="bertkit.json") as aside:
        save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
        if rest:
            save_file(rest, aside / "head.safetensors")
        write_facts(bundle, aside, "float16" if half else "float32")


def write_facts(bundle: Bundle, folder: Path, dtype: str = "float32") -> None:
    """Writes all files of an artifact except its weights."""
    config, family, task = bundle.network.encoder.config, bundle.family, bundle.task
    roles = {"pad": "pad", "cls": "cls", "sep": "sep", "mask": "mask", "bos": "cls", "eos": "sep"}
    settings = {f"{name}_token_id": getattr(bundle.tokenizer, role) for name, role in roles.items()} | {"dtype": dtype}
    settings |= {"architectures": [_architecture(bundle.network, family)], **families.write_config(config, family)}
    settings |= families.write_task(task.settings, family) if task and _head(task) else {}
    told = asdict(task.settings) if task else "pretraining"
    own = {"format": 1, "bertkit": __version__, "task": told, "provenance": bundle.provenance}
    families.write_json(folder / "config.json", settings)
    families.write_json(folder / "bertkit.json", own)
    bundle.tokenizer.write_files(folder, max_length=config.positions, segments=config.segments)
    if task and task.loss == "vectors":
        write_pooling(folder, task.settings, config.width)


def heads_of(network: Any) -> tuple[str, ...]:
    """Returns the names of the pre-training heads that a network has."""
    return tuple(name for name in ("masked", "next", "replaced") if getattr(network, name, None) is not None)


def empty_network(config: Config, task: Task | None, heads: Collection[str]) -> Any:
    """Returns a new network for a task, or one with pre-training heads if there is none."""
    if task:
        return build_network(config, task)
    return Pretraining(config, masked="masked" in heads, next_sentence="next" in heads, replaced="replaced" in heads)


def _halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors in fp16; raises an error if a value overflows."""
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    for name, half in halves.items():
        if not (held := half.isfinite()).all():
            found = f"{name} holds {tensors[name][~held][0]:,g}"
            raise ArtifactError(f"{found}; fp16 holds numbers up to 65,504: keep fp32, without --half")
    return halves


def _architecture(network: Any, family: families.Family) -> str:
    """Returns the transformers class for a network without a task."""
    heads = heads_of(network)
    if network.encoder.config.causal and "masked" in heads:
        heads = ("causal",)
    return next(family.classes[known] for known in (heads, heads[:1], ()) if known in family.classes)


def _head(task: Task | None) -> str:
    """Returns the task for which transformers has a class; "" if the head goes to head.safetensors instead."""
    told = task.settings if task else TaskSettings()
    return told.task if task and task.loss != "vectors" and not told.features and not told.lstm else ""


def _read_weights(path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Returns the file of a folder's or checkpoint's weights, and the weights under Hugging Face's names."""
    for name, read in (("model.safetensors", _read_safetensors), ("pytorch_model.bin", _read_bin)):
        if (file := path / name).is_file():
            return file, read(file)
        if shards := read_json(index := path / f"{name}.index.json", ArtifactError):
            files = sorted({path / Path(str(file)).name for file in shards.get("weight_map", {}).values()})
            return index, {name: tensor for file in files for name, tensor in read(file).items()}
    if checkpoint := google.find_checkpoint(path):
        return checkpoint, {name: torch.from_numpy(array) for name, array in google.read_checkpoint(checkpoint).items()}
    if (path / "model.onnx").is_file():
        raise ArtifactError(f"{path} was exported, which is for answers alone; expected the model it was made of")
    expected = "model.safetensors, pytorch_model.bin or a TensorFlow checkpoint (.index, .data)"
    raise ArtifactError(f"{path}: no weights here; expected {expected}")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise ArtifactError(f"{file}: damaged or cut off ({error}); fetch or copy it again") from error


def _read_bin(file: Path) -> dict[str, Tensor]:
    """Reads tensors only: weights_only refuses every other object a pickle could hold."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many exception types, from RuntimeError to UnpicklingError
        said = "damaged, or holds more than tensors, which is never loaded"
        raise ArtifactError(f"{file}: {said} ({type(error).__name__}); fetch it again, or get safetensors") from error
    if not isinstance(content, dict) or not all(isinstance(n, str) and _dense(t) for n, t in content.items()):
        raise ArtifactError(f"{file}: expected a table of plain tensors by their names; get model.safetensors instead")
    return content


def _dense(value: Any) -> bool:
    strided = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    return strided and not value.is_quantized and not value.is_complex()


def _build(config: Config, state: dict[str, Tensor], family: families.Family, task: Task | None) -> Any:
    """Builds a network from the weights, which also determine the pooler and, without a task, the heads."""
    parts = {name.split(".")[0] for name in state} | {"pooler" for name in state if "pooler" in name}
    with torch.device("meta"), Unfilled():
        network = empty_network(config.with_(pooler="pooler" in parts), task, parts)
    if task and task.loss == "vectors":  # the layer that compares vectors is only used in training
        shapes = {"output.weight": (task.outputs, 3 * config.width), "output.bias": (task.outputs,)}
        state = {name: torch.zeros(shape) for name, shape in shapes.items()} | state
    expected = network.state_dict()
    theirs = families.names_of(family, config.layers, _head(task))
    name_of = {name: ", ".join(theirs.get(name, (name,))) for name in expected}
    if missing := [name_of[name] for name in expected if name not in state]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ArtifactError(f"missing {', '.join(missing[:3])}{more}; expected {len(expected)} parameters")
    for name, parameter in expected.items():
        if state[name].shape != parameter.shape:
            found, wanted = list(state[name].shape), list(parameter.shape)
            raise ArtifactError(f"{name_of[name]} is {found}; the config asks for {wanted}")
    network.load_state_dict({name: state[name].float().contiguous() for name in expected}, assign=True)
    if task:
        network.weights = torch.ones(task.outputs)
    return network.eval()
