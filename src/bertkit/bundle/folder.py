"""What a model folder holds besides weights: configuration, family, task, tokenizer, provenance. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from bertkit.atomic import read_json
from bertkit.bundle import families
from bertkit.bundle.members import BERT, family_of
from bertkit.bundle.sentences import read_pooling
from bertkit.errors import ArtifactError, ConfigError, check_choice
from bertkit.model.config import Config
from bertkit.tasks import TASKS
from bertkit.tasks.task import Task, TaskSettings
from bertkit.text.tokenizer import Tokenizer


@dataclass
class Bundle:
    """A network with its tokenizer and their provenance. ExportedBundle overrides the methods."""

    network: Any  # Pretraining, or TaskNetwork if there is a task
    tokenizer: Tokenizer
    family: families.Family = BERT
    provenance: dict[str, Any] = field(default_factory=dict)
    task: Task | None = None

    def start(self, device: str, precision: str = "fp32", compile: bool = False, threads: int = 0) -> Any:
        """Returns a runner that computes the network on a device."""
        from bertkit.bundle.runner import Runner

        return Runner(self.network, device, precision, compile, threads)

    def device(self, name: str) -> str:
        """Returns the device that is used for a name such as "auto"."""
        from bertkit.model.device import find_device

        return str(find_device(name))

    def content(self) -> Iterator[bytes]:
        """Yields the bytes of everything that the answers depend on, except the tokenizer."""
        yield repr((self.network.encoder.config, self.task and self.task.settings)).encode()
        for tensor in self.network.state_dict().values():
            yield tensor.contiguous().numpy().data

    def save(self, folder: Path | str) -> None:
        """Writes the artifact, completely or not at all."""
        from bertkit.bundle.bundle import save_bundle

        save_bundle(self, folder)


@dataclass(frozen=True)
class Facts:
    """Everything small in a folder, except the tokenizer."""

    folder: Path
    config: Config
    family: families.Family
    task: Task | None
    provenance: dict[str, Any]

    def read_tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.folder)
        if len(tokenizer) > self.config.vocabulary:
            sizes = f"the tokenizer has {len(tokenizer):,} pieces, the model knows {self.config.vocabulary:,}"
            raise ArtifactError(f"{self.folder}: {sizes}; they do not belong together")
        return tokenizer


def read_facts(path: Path) -> Facts:
    """Reads the facts of a folder or checkpoint."""
    settings, file = _read_settings(path)
    try:
        family = family_of(settings)
        config = families.read_config(settings, family)
        own = read_json(file.parent / "bertkit.json")
        theirs = families.read_task(settings, family, config.positions) or read_pooling(path, config.positions)
        task = _task(own.get("task"), theirs)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"{file}, or a file beside it: a setting is of another kind than expected ({error!r})") from error
    provenance = own.get("provenance")
    return Facts(file.parent, config, family, task, provenance if isinstance(provenance, dict) else {})


def _task(own: Any, theirs: TaskSettings | None) -> Task | None:
    """Returns the task given in bertkit.json, or else the one found in Hugging Face's files."""
    if isinstance(own, dict):
        known = {f.name for f in fields(TaskSettings)}
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in own.items() if name in known}
        theirs = TaskSettings(**values)
        for name, kind in get_type_hints(TaskSettings).items():
            if not _is_of(value := getattr(theirs, name), kind):
                raise ConfigError(f"{name} is {value!r}; expected {kind if get_args(kind) else kind.__name__}")
    if theirs is None:
        return None
    check_choice("the task of bertkit.json", theirs.task, TASKS, ConfigError)
    return TASKS[theirs.task](theirs)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, each part of a tuple included; a whole number is a float too."""
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(type(part) is kinds[0] for part in value)
    return type(value) in kinds or (float in kinds and type(value) is int)


def _read_settings(path: Path) -> tuple[dict[str, Any], Path]:
    """Returns the config of a folder or checkpoint, and the file it was read from."""
    folder = path if path.is_dir() else path.parent
    for name in ("config.json", "bert_config.json"):
        if (folder / name).is_file():
            return read_json(folder / name), folder / name
    raise ArtifactError(f"{folder}: no config.json (or bert_config.json) here; expected a model folder")
