"""All settings of a training run. The resolved recipe is saved with the run, which resumes only with the same one."""

import math
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from bertkit.data.masking import Masking
from bertkit.errors import InputError, check_choice, did_you_mean
from bertkit.model.config import MEMBERS, Config
from bertkit.tasks.objectives import JUDGED, OBJECTIVES
from bertkit.tasks.task import TaskSettings
from bertkit.train.run import flat

Settings = TypeVar("Settings", bound="Training")
SCHEDULES = ("linear", "constant", "cosine", "trapezoid")


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW, or Muon for the blocks' matrices with AdamW for everything else."""

    kind: str = "adamw"
    lr: float = 1e-4
    muon_lr: float = 2e-3  # scaled so that updates are as large as AdamW's
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01  # not on biases and norms
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_choice("optimizer.kind", self.kind, ("adamw", "muon"))
        if min(self.lr, self.muon_lr, self.epsilon, self.weight_decay) < 0 or self.clip <= 0:
            raise InputError("lr, muon_lr, epsilon and weight_decay must be at least 0, clip above 0")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise InputError(f"beta1 is {self.beta1}, beta2 {self.beta2}; expected both from 0 up to, not including, 1")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate rises and falls over the run, measured in steps, or in time if the budget ends it sooner."""

    kind: str = "linear"
    warmup: float = 0.01  # share of the run
    cooldown: float = 0.2  # share of the run over which a trapezoid falls

    def __post_init__(self) -> None:
        check_choice("schedule.kind", self.kind, SCHEDULES)
        if not (0 <= self.warmup <= 1 and 0 < self.cooldown <= 1):
            raise InputError(f"warmup is {self.warmup}, cooldown {self.cooldown}; expected shares of the run")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the run with examples of one length."""

    length: int = 128
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.length < 8 or self.share < 0:
            raise InputError(f"a phase has length {self.length}, share {self.share}; expected at least 8, and at least 0")


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of every training run."""

    name: str = ""
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    row_tokens: int = 32_768  # tokens computed at once; a step accumulates the gradients of its rows
    steps: int = 1_000_000
    budget: float = 0.0  # seconds; 0: no limit
    precision: str = "bf16"
    compile: bool = True
    graphs: bool = False  # record the gradients of each row shape as a CUDA graph; for small batches
    checkpointing: bool = False  # recompute activations in the backward pass, to save memory
    evaluate_every: int = 5000
    patience: int = 0  # evaluations without a better score before the run ends; 0: no limit
    checkpoint_every: int = 0  # steps; 0: every five minutes instead
    keep: int = 2
    log_every: int = 50
    seed: int = 0
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16")

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, self.precisions)
        if min(self.steps, self.keep, self.log_every, self.evaluate_every) < 1:
            raise InputError("steps, keep, log_every and evaluate_every must be at least 1")
        if min(self.patience, self.budget, self.checkpoint_every) < 0 or not 0 <= self.seed < 2**63:
            found = f"patience is {self.patience}, budget {self.budget}, checkpoint_every {self.checkpoint_every}"
            raise InputError(f"{found}, seed {self.seed}; expected at least 0, and a seed below 2^63")


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Pre-training; the defaults are the paper's BERT-base (appendix A.2)."""

    name: str = "bert-base"
    config: Config = field(default_factory=Config)
    family: str = "bert"  # the Hugging Face model_type under which it is saved
    objective: str = "masked"
    generator: float = 1 / 3  # its width over the model's, for replaced-token detection
    pairs: str = "next"
    short: float = 0.1
    masking: Masking = field(default_factory=Masking)
    phases: tuple[Phase, ...] = (Phase(length=128, share=0.9), Phase(length=512, share=0.1))
    batch_tokens: int = 131_072  # per step
    row_tokens: int = 0  # 0: the whole step, or as much of it as the device's memory holds
    ramp: float = 0.0  # share of the run over which the batch grows from an eighth to its full size
    held_out: float = 0.005  # share of documents kept for evaluation
    evaluate_examples: int = 2048  # at most
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp8")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("objective", self.objective, OBJECTIVES)
        if self.objective in JUDGED and self.pairs != "none":
            raise InputError(f"{self.objective} works without pairs, and pairs is {self.pairs}; add pairs=none")
        if self.evaluate_examples < 1 or not all(0 <= one <= 1 for one in (self.held_out, self.ramp, self.short)):
            raise InputError("evaluate_examples must be at least 1, held_out, ramp and short from 0 to 1")
        check_choice("family", self.family, MEMBERS)
        if self.config.causal and self.objective != "masked":
            raise InputError(f"causal predicts the next piece; expected objective=masked with it, found {self.objective}")
        if not 0 < self.generator <= 1:
            raise InputError(f"generator is {self.generator}; expected its width over the model's, above 0, at most 1")
        if self.batch_tokens < 1 or self.row_tokens < 0 or self.batch_tokens % (self.row_tokens or 1):
            expected = "expected a multiple of row_tokens, and at least 1"
            raise InputError(f"batch_tokens is {self.batch_tokens}, row_tokens {self.row_tokens}; {expected}")
        if abs(sum(phase.share for phase in self.phases) - 1) > 1e-6:
            raise InputError(f"the phases' shares add up to {sum(phase.share for phase in self.phases)}; expected 1")
        if longest := next((p.length for p in self.phases if p.length > self.config.positions), None):
            raise InputError(f"a phase has length {longest}; the model has {self.config.positions} positions")

    def phase_at(self, progress: float) -> int:
        """Returns the index of the phase at a progress of 0 to 1."""
        ends = accumulate(phase.share for phase in self.phases[:-1])
        return sum(progress >= end - 1e-9 for end in ends)


@dataclass(frozen=True, kw_only=True)
class Tuning(Training):
    """Fine-tuning. The learning rate is for a width of 768; narrower models get a higher one."""

    name: str = "fine-tuning"
    task: TaskSettings = field(default_factory=TaskSettings)
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(lr=3e-5))
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup=0.1))
    epochs: float = 0.0  # 0: three, or up to ten if three make fewer than 600 steps
    batch: int = 32  # records per step; for qa, windows
    compile: bool = False  # pays off after about a million examples; graphs cost nothing
    graphs: bool = True
    dropout: float | None = None  # of the encoder; None: as in the model
    layer_decay: float = 1.0  # each block's learning rate divided by that of the block above
    reinit: int = 0  # top blocks to reinitialise
    freeze: int = 0  # lower blocks to freeze, with the embeddings; -1: the whole encoder
    balance: bool = False  # give rare classes more weight
    smoothing: float = 0.0  # label smoothing
    keep: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1 or self.epochs < 0 or self.reinit < 0 or self.freeze < -1:
            raise InputError("batch must be at least 1, epochs and reinit at least 0, freeze at least -1")
        if not (0 < self.layer_decay <= 1 and 0 <= self.smoothing < 1):
            raise InputError("layer_decay must be above 0 and at most 1, smoothing at least 0 and below 1")


def rate_factor(schedule: Schedule, progress: float) -> float:
    """Returns the learning rate as a share of its peak, at a progress of 0 to 1."""
    if progress < schedule.warmup:
        return progress / schedule.warmup
    after = (progress - schedule.warmup) / max(1e-9, 1 - schedule.warmup)
    if schedule.kind == "linear":
        return max(0.0, 1 - after)
    if schedule.kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, after)))
    if schedule.kind == "trapezoid":
        return min(1.0, max(0.0, 1 - progress) / schedule.cooldown)
    return 1.0


def with_rows(recipe: Recipe, most: int, ranks: int = 1) -> Recipe:
    """Returns the recipe with row_tokens; if unset, the fewest equal rows for these ranks, of at most `most` tokens."""
    counts = range(max(ranks, -(-recipe.batch_tokens // most)), recipe.batch_tokens + 1)
    fewest = next((count for count in counts if recipe.batch_tokens % count == 0), recipe.batch_tokens)
    return replace(recipe, row_tokens=recipe.row_tokens or recipe.batch_tokens // fewest)


def change(recipe: Settings, settings: list[str]) -> Settings:
    """Returns the recipe with settings such as "steps=300" or "optimizer.lr=1e-3"; a bare name works if it is unique."""
    changes = dict[tuple[str, ...], str]()
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set takes name=value, found {setting!r}")
        changes[_path(recipe, name.strip())] = text.strip()
    return _change(recipe, changes)


def _path(recipe: Training, name: str) -> tuple[str, ...]:
    """Returns the full path of a dotted or bare name."""
    paths = list(flat(asdict(recipe)))
    fitting = [path for path in paths if path == name] or [path for path in paths if path.rpartition(".")[2] == name]
    if len(fitting) == 1:
        return tuple(fitting[0].split("."))
    if fitting:
        raise InputError(f"{name} could be {' or '.join(fitting)}; write it in full")
    raise InputError(f"no setting {name!r}{did_you_mean(name, [*paths, *(p.rpartition('.')[2] for p in paths)])}")


def _change(part: Any, changes: dict[tuple[str, ...], str]) -> Any:
    """Makes all changes at once, so that values that must fit each other may come in any order."""
    kinds, values = get_type_hints(type(part)), dict[str, Any]()
    for name in {path[0] for path in changes}:
        below = {path[1:]: text for path, text in changes.items() if path[0] == name}
        values[name] = _parse(below[()], kinds[name], name) if () in below else _change(getattr(part, name), below)
    return replace(part, **values)


def _parse(text: str, kind: Any, name: str) -> Any:
    """Parses a value of the field's type."""
    if kind is bool and text.lower() in ("true", "false", "1", "0", "yes", "no"):
        return text.lower() in ("true", "1", "yes")
    if name == "phases":
        pairs = (part.partition(":") for part in text.split(","))
        return tuple(Phase(length=_parse(a, int, "a length"), share=_parse(b or "1", float, "a share")) for a, _, b in pairs)
    if inner := get_args(kind):  # of a tuple, or of an optional value
        if get_origin(kind) is tuple:
            return tuple(_parse(part, inner[0], name) for part in text.split(",") if part)
        return None if text.lower() == "none" else _parse(text, inner[0], name)
    try:
        if kind is not bool:
            value = kind(f"{float(text):.30g}" if kind is int and "e" in text.lower() else text)
            if not isinstance(value, float) or math.isfinite(value):
                return value
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{name} is {text!r}; expected {kind.__name__}")
