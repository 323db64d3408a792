"""The contract of a task: records → inputs, and logits → answers → metrics. Only numpy; the head is in tasks/network.py.

A task is a class here in tasks/ and a line in TASKS; the contract tests pick it up.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from bertkit.data.records import AnyRecord
from bertkit.data.windows import Input, Layout
from bertkit.errors import DataError, InputError, check_choice, short
from bertkit.tasks.metrics import METRICS
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What a fine-tuned model must know of its task; saved in the artifact."""

    task: str = "classification"
    labels: tuple[str, ...] = ()
    max_length: int = 128  # pieces per sequence
    stride: int = 0  # pieces from one window of a long text to the next; 0: truncate; for tagging and qa, a default
    question_length: int = 64  # most pieces of a question
    answer_length: int = 30  # most pieces of an answer
    context: bool = False  # tagging: fill sequences up with neighbouring sentences
    threshold: float | None = None  # qa: no answer if the null score exceeds the best span's by more; None: always answer
    temperature: float = 1.0  # divides the logits
    pooling: str = "mean"  # similarity: mean, cls or max
    normalize: bool = False  # similarity: scale vectors to length 1
    objective: str = ""  # similarity: cosine, classes, triplet or negatives
    center: float = 0.0  # regression: the number that 0 stands for
    scale: float = 1.0  # similarity and regression: divides the labels
    metrics: tuple[str, ...] = ()  # the headline first; (): the task's own
    features: tuple[int, ...] = ()  # layers that the head reads, with the encoder frozen; (): fine-tune the encoder
    mix: str = "concat"  # how to combine these layers: concat, or weighted for a learned weighted sum
    lstm: int = 0  # width of a two-layer bidirectional LSTM below the head; 0 for none

    def __post_init__(self) -> None:
        for name, known in (("pooling", ("mean", "cls", "max")), ("mix", ("concat", "weighted"))):
            check_choice(name, getattr(self, name), known)
        if min(self.stride, self.question_length, self.lstm) < 0 or min(self.max_length, self.answer_length) < 1:
            raise InputError("lengths, stride and lstm must not be negative, max_length and answer_length at least 1")
        if not (self.temperature > 0 and self.scale > 0):
            raise InputError(f"temperature is {self.temperature}, scale {self.scale}; expected both above 0")


OF_CLASSES = ("f1", "accuracy", "macro_f1", "matthews")  # f1, of the second class, needs exactly two


class Task(ABC):
    """The contract: what every task implements."""

    layout: ClassVar[Layout] = Layout()
    loss: ClassVar[str]  # a name in network.LOSSES
    pooled: ClassVar[bool] = True  # predicted from the pooler's vector
    figures: ClassVar[tuple[str, ...]] = ("accuracy",)  # metrics, the headline first

    def __init__(self, settings: TaskSettings):
        self.settings = settings

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Any]) -> TaskSettings:
        """Returns the settings completed from the training records: labels above all."""
        return settings

    def check_metrics(self) -> None:
        """Raises if a chosen metric does not suit the task."""
        known = OF_CLASSES[self.outputs != 2 :] if self.loss == "classes" and self.pooled else self.figures
        for metric in self.settings.metrics:
            check_choice(f"a metric of {self.settings.task}", metric, known)

    @property
    def outputs(self) -> int:
        """Numbers that the head outputs per place."""
        return len(self.settings.labels)

    @property
    def headline(self) -> str:
        return (self.settings.metrics or self.figures)[0]

    @abstractmethod
    def units(self, records: Sequence[Any], tokenizer: Tokenizer) -> list[list[Input]]:
        """Returns the inputs of each record."""

    @abstractmethod
    def answers(self, records: Sequence[Any], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        """Returns an answer for each record, from the logits [M, outputs] of each of its inputs."""

    def gold(self, records: Sequence[Any]) -> list[Any]:
        """Returns the true values, to compare with the `value`s of the answers."""
        return [record.label for record in records]

    def value(self, answer: Any) -> Any:
        """Returns the part of an answer that is scored."""
        return answer

    def score(self, records: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """Returns the task's metrics over records with known labels."""
        gold, found = self.gold(records), [self.value(answer) for answer in answers]
        return {name: METRICS[name](gold, found) for name in self.settings.metrics or self.figures}

    def confidence(self, answers: Sequence[Any]) -> np.ndarray | None:
        """Returns log-probabilities [N, C] for calibration, or None if the task has none."""
        return None


def label_set(settings: TaskSettings, found: Sequence[str], records: Sequence[Any] = ()) -> TaskSettings:
    """Sets the labels to those given, else to those found, sorted. Raises if a label occurs in only one of the records."""
    counts = Counter(found)
    if once := next((record for record in records if counts[record.label] == 1), None):
        advice = "expected two records at least: merge it, or take it out"
        raise DataError(f"label {once.label!r} occurs once; {advice}", once.place)
    labels = settings.labels or tuple(sorted(counts))
    if len(labels) < 2:
        raise InputError(f"the training records have {len(labels)} labels ({', '.join(labels)}); expected at least two")
    return replace(settings, labels=labels)


def number_of(label: Any, labels: Sequence[str], record: AnyRecord) -> int:
    if label not in labels:
        raise DataError(f"label {label!r} was not seen in training; expected one of {', '.join(labels)}", record.place)
    return labels.index(label)


def check_texts(records: Sequence[Any], *names: str) -> None:
    for number, record in enumerate(records, start=1):
        for value in (getattr(record, name) for name in names):
            if not isinstance(value, str) or not value.strip():
                found = "is empty" if isinstance(value, str) else f"is {short(repr(value))}, no text"
                raise InputError(f"{record.place or f'text {number}'} {found}; expected something to read")
