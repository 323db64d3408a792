"""Fine-tuning as a job for the training loop: a task's records, a pre-trained encoder, and metrics on dev."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.inputs import InputFeed, pack_units
from bertkit.data.loader import Step
from bertkit.data.records import fingerprint
from bertkit.errors import InputError
from bertkit.model.config import Config
from bertkit.model.device import fetched, flops_per_token, wants_grids
from bertkit.model.init import initialize
from bertkit.model.linear import wants_steps
from bertkit.progress import bar
from bertkit.tasks.answering import answer_records
from bertkit.tasks.network import FeatureNetwork, TaskNetwork, build_network
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.checkpoint import State
from bertkit.train.distributed import World
from bertkit.train.fit import Export, Figures, Job, Trainer
from bertkit.train.optimizer import Share
from bertkit.train.recipe import Tuning


class TuningFeed:
    """Rows of the training records, epoch after epoch."""

    def __init__(self, recipe: Tuning, task: Task, units: Sequence[Any], config: Config, device: torch.device):
        self.config, self.length, grids = config, recipe.task.max_length, wants_grids(device, recipe.precision, config)
        parts = units if task.layout.by_unit else [[one] for unit in units for one in unit]  # inputs that stay together
        self.inputs = InputFeed(
            parts, task.layout, batch=recipe.batch, seed=recipe.seed, row_tokens=recipe.row_tokens, grids=grids
        )

    def step(self, progress: float, state: State) -> Step:
        return Step(*self.inputs.rows(state.cursor))

    def flops_per_token(self, state: State) -> float:
        return flops_per_token(self.config, self.length // 2, 0.0)

    def close(self) -> None:
        """Deletes the features that were computed for this run."""
        if isinstance(self.inputs.features, FeatureCache):
            self.inputs.features.file.unlink(missing_ok=True)


def check_fits(recipe: Tuning, task: Task, encoder: Any) -> None:
    """Raises where the settings do not suit the task or the model's shape."""
    task.check_metrics()
    count, positions = len(encoder.blocks), encoder.config.positions
    if recipe.task.max_length > positions:
        raise InputError(f"max_length is {recipe.task.max_length}; the model has {positions} positions")
    if recipe.reinit > count or recipe.freeze > count:
        raise InputError(f"reinit is {recipe.reinit} and freeze {recipe.freeze}; the model has {count} blocks")
    if task.loss == "vectors" and (recipe.freeze in (-1, count) or task.settings.features or task.settings.lstm):
        raise InputError("similarity trains the encoder itself; features, lstm and --freeze are for other tasks")
    if recipe.smoothing and task.loss != "classes":
        raise InputError(f"smoothing is of the one right class; {task.settings.task} has none")
    if task.settings.labels and task.settings.task in ("qa", "choice"):
        raise InputError(f"labels are the names of classes; {task.settings.task} has none")


def tuned_network(
    recipe: Tuning, task: Task, source: Any, records: Sequence[Any], source_task: Task | None = None
) -> TaskNetwork:
    """Returns a network for the task with the source's encoder, and its head too if its task and labels are the same."""
    config: Config = source.encoder.config
    if recipe.dropout is not None:
        config = config.with_(dropout=recipe.dropout, attention_dropout=recipe.dropout)
    check_fits(recipe, task, source.encoder)
    told = (task.settings.task, task.settings.labels)
    same = source_task is not None and (source_task.settings.task, source_task.settings.labels) == told
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = build_network(config, task)
        mine, theirs = network.state_dict(), source.state_dict()
        wanted = [name for name in theirs if name in mine and (same or name.startswith("encoder."))]
        fitting = {name: theirs[name] for name in wanted if theirs[name].shape == mine[name].shape}
        if missing := [name for name in mine if "encoder." in name and "pooler" not in name and name not in fitting]:
            raise InputError(f"the model lacks {missing[0]}; expected a whole encoder")
        network.load_state_dict(mine | fitting)
        for block in list(network.encoder.blocks)[len(network.encoder.blocks) - recipe.reinit :]:
            initialize(block, config.init_std)
    _freeze(network, recipe.freeze)
    network.encoder.checkpointing, network.smoothing = recipe.checkpointing, recipe.smoothing
    if recipe.balance:
        network.weights = _class_weights(task, records)
    return network


def tuning_job(
    run: Path,
    recipe: Tuning,
    task: Task,
    network: Any,
    tokenizer: Tokenizer,
    train: Sequence[Any],
    dev: Sequence[Any],
    device: torch.device,
    export: Export,
) -> Job:
    encoder = network.kept.encoder
    config = encoder.config
    fixed = device.type == "cuda" and type(network) is TaskNetwork and network.lstm is None  # do rows have few shapes?
    fixed = fixed and config.global_tokens in ("", "none")
    recipe = replace(recipe, compile=recipe.compile and fixed, graphs=recipe.graphs and fixed)
    feed = TuningFeed(recipe, task, task.units(train, tokenizer), config, device)
    if isinstance(network, FeatureNetwork):
        feed.inputs.features = FeatureCache(network, feed.inputs, device, run / "features.bin")
    else:
        feed.inputs.stepped = wants_steps(device, recipe.precision)
    recipe = _resolved(recipe, feed.inputs, config)
    if recipe.compile or recipe.graphs:
        feed.inputs.fix_shapes()
    begun = {"train": fingerprint(train), "dev": fingerprint(dev)}
    evaluate = partial(_evaluate, task, tokenizer, dev, recipe) if dev else None
    share = _shares(len(encoder.blocks), recipe.layer_decay)
    return Job(run, recipe, network, feed, device, World(), export, begun, evaluate, share, best="model")


class FeatureCache:
    """A frozen encoder's features of every unit, computed once, on first use, into a file on disk."""

    def __init__(self, network: FeatureNetwork, inputs: InputFeed, device: torch.device, file: Path):
        self.network, self.inputs, self.device, self.file = network, inputs, device, file

    def __call__(self, members: np.ndarray) -> torch.Tensor:
        """Returns the features of the units with these indices, concatenated."""
        return torch.from_numpy(np.concatenate([self.units[number] for number in members]))

    @cached_property
    def units(self) -> list[np.ndarray]:
        """Each unit's part of the file [T, layers, D]."""
        network, inputs, ends = self.network, self.inputs, np.cumsum(self.inputs.sizes)
        shape = (int(ends[-1]), len(network.layers), network.encoder.config.width)
        parts = np.split(np.memmap(self.file, np.float32, "w+", shape=shape), ends[:-1])
        with bar("computing features", len(parts)) as show:
            for number, (unit, part) in enumerate(zip(inputs.units, parts, strict=True), start=1):
                batch = pack_units([unit], inputs.layout).batch.to(self.device)
                part[:] = fetched(network.features(batch))
                show(number)
        return parts


def rate_for_width(width: int) -> float:
    """Returns the factor that turns a learning rate for width 768 into one for this width."""
    return min(10.0, (768 / width) ** 1.5)


def _resolved(recipe: Tuning, inputs: InputFeed, config: Config) -> Tuning:
    """Returns the recipe with its steps resolved, and the learning rate scaled to the model's width."""
    epochs = recipe.epochs or min(10.0, max(3.0, 600 / inputs.steps))
    steps = min(recipe.steps, max(1, round(epochs * inputs.steps)))
    epochs = steps / inputs.steps
    lr = recipe.optimizer.lr * rate_for_width(config.width)
    every = min(recipe.evaluate_every, inputs.steps)
    optimizer, log_every = replace(recipe.optimizer, lr=lr), min(recipe.log_every, max(1, steps // 50))
    return replace(recipe, epochs=epochs, steps=steps, optimizer=optimizer, evaluate_every=every, log_every=log_every)


def _evaluate(
    task: Task, tokenizer: Tokenizer, dev: Sequence[Any], recipe: Tuning, trainer: Trainer, state: State
) -> Figures:
    options: dict[str, Any] = dict(precision=recipe.precision, budget=recipe.row_tokens // 2)
    answers = list(answer_records([trainer.network.kept], task, tokenizer, dev, trainer.job.device, **options))
    figures = task.score(dev, answers)
    epoch = state.step / trainer.job.recipe.steps * recipe.epochs  # both resolved
    return {"epoch": epoch} | {f"dev_{name}": value for name, value in figures.items()}, figures[task.headline]


def _freeze(network: TaskNetwork, blocks: int) -> None:
    """Freezes embeddings, positions and the lowest `blocks` blocks, or all if -1; a pooler is still trained."""
    encoder = network.encoder
    lower = [encoder.embeddings, encoder.positions, *list(encoder.blocks)[: None if blocks == -1 else blocks]]
    for part in lower if blocks else ():
        part.requires_grad_(False)


def _shares(layers: int, decay: float) -> Share:
    """Layer-wise learning rates: full for head and pooler, each block `decay` times the one above, embeddings lowest."""

    def share(name: str) -> float:
        name = name.removeprefix("kept.")  # in a distilled student
        if name.startswith("encoder.blocks."):
            return decay ** (layers - int(name.split(".")[2]))
        return decay ** (layers + 1) if name.startswith(("encoder.embeddings.", "encoder.positions.")) else 1.0

    return share


def _class_weights(task: Task, records: Sequence[Any]) -> torch.Tensor:
    """Class weights inverse to frequency, with a mean of 1 over the records; for flags, negatives per positive."""
    if task.loss not in ("classes", "flags"):
        raise InputError(f"balance=true weighs classes; {task.settings.task} has none")
    gold = task.gold(records)
    if task.loss == "flags":
        yes = np.array(gold).sum(0)
        return torch.tensor((len(gold) - yes) / yes.clip(1), dtype=torch.float32)
    counts = Counter(np.hstack(gold).tolist())  # by label, or by the label's index
    found = np.array([counts[label] + counts[number] for number, label in enumerate(task.settings.labels)]).clip(1)
    return torch.tensor(found.sum() / (len(found) * found), dtype=torch.float32)
