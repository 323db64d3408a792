"""The contract of a task: records → inputs, and logits → answers → figures. Numpy alone; tasks/network.py has the head.

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
    """What a fine-tuned model must remember of its task; saved in the artifact."""

    task: str = "classification"
    labels: tuple[str, ...] = ()
    max_length: int = 128  # pieces of a sequence
    stride: int = 0  # pieces from one window of a long text to the next; 0: cut off, or for tagging and qa the usual one
    question_length: int = 64  # pieces of a question beside its windows
    answer_length: int = 30  # pieces of an answer
    context: bool = False  # tagging: fill sequences up with the sentences around
    threshold: float | None = None  # qa: no answer where the null score exceeds the best one by more; None: always answer
    temperature: float = 1.0  # logits are divided by it
    pooling: str = "mean"  # similarity: mean, cls or max
    normalize: bool = False  # similarity: vectors have the length 1
    objective: str = ""  # similarity: cosine, classes, triplet or negatives
    center: float = 0.0  # regression: the number that 0 stands for
    scale: float = 1.0  # similarity and regression: what labels are divided by
    metrics: tuple[str, ...] = ()  # the headline first; () for the task's own
    features: tuple[int, ...] = ()  # the encoder stays frozen, and its states of these layers are what the head reads
    mix: str = "concat"  # of these layers: concat, or weighted for a learned sum
    lstm: int = 0  # width of a two-layer bidirectional LSTM below the head; 0 for none

    def __post_init__(self) -> None:
        for name, known in (("pooling", ("mean", "cls", "max")), ("mix", ("concat", "weighted"))):
            check_choice(name, getattr(self, name), known)
        if min(self.stride, self.question_length, self.lstm) < 0 or min(self.max_length, self.answer_length) < 1:
            raise InputError("lengths, stride and lstm must not be negative, max_length and answer_length at least 1")
        if not (self.temperature > 0 and self.scale > 0):
            raise InputError(f"temperature is {self.temperature}, scale {self.scale}; expected both above 0")


OF_CLASSES = ("f1", "accuracy", "macro_f1", "matthews")  # F1 is that of the second of two


class Task(ABC):
    """One kind of question about texts."""

    layout: ClassVar[Layout] = Layout()
    loss: ClassVar[str]  # a name in network.LOSSES
    pooled: ClassVar[bool] = True  # judged from the pooler's vector
    figures: ClassVar[tuple[str, ...]] = ("accuracy",)  # metrics, the headline first

    def __init__(self, settings: TaskSettings):
        self.settings = settings

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Any]) -> TaskSettings:
        """The settings with what the training records tell: labels above all."""
        return settings

    def check_metrics(self) -> None:
        """Refuses to measure what the answers are not."""
        known = OF_CLASSES[self.outputs != 2 :] if self.loss == "classes" and self.pooled else self.figures
        for metric in self.settings.metrics:
            check_choice(f"a metric of {self.settings.task}", metric, known)

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each place."""
        return len(self.settings.labels)

    @property
    def headline(self) -> str:
        return (self.settings.metrics or self.figures)[0]

    @abstractmethod
    def units(self, records: Sequence[Any], tokenizer: Tokenizer) -> list[list[Input]]:
        """The inputs of each record."""

    @abstractmethod
    def answers(self, records: Sequence[Any], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        """An answer for each record, from the logits [M, outputs] of each of its inputs."""

    def gold(self, records: Sequence[Any]) -> list[Any]:
        """What the answers' `value`s are compared with."""
        return [record.label for record in records]

    def value(self, answer: Any) -> Any:
        """What of an answer is scored."""
        return answer

    def score(self, records: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """The task's metrics over records with known labels."""
        gold, found = self.gold(records), [self.value(answer) for answer in answers]
        return {name: METRICS[name](gold, found) for name in self.settings.metrics or self.figures}

    def confidence(self, answers: Sequence[Any]) -> np.ndarray | None:
        """log-probabilities [N, C] where the task gives them, for calibration."""
        return None


def label_set(settings: TaskSettings, found: Sequence[str], records: Sequence[Any] = ()) -> TaskSettings:
    """The labels that were given, or those found, sorted. One that a single one of the records has cannot be learned."""
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
