"""Predicts a label for a text or a pair, any number of labels, or a number. Long texts may be read in windows, whose logits
are averaged."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from bertkit.data.records import Record
from bertkit.data.windows import NOTHING, Input, text_windows
from bertkit.tasks.metrics import softmax
from bertkit.tasks.task import Task, TaskSettings, check_texts, label_set, number_of
from bertkit.text.tokenizer import Tokenizer


class Classified(NamedTuple):
    """The likeliest label, its probability, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]

    @classmethod
    def of(cls, labels: Sequence[str], chances: np.ndarray) -> Self:
        """Returns the answer from the probability of each label."""
        best = int(chances.argmax())
        return cls(labels[best], float(chances[best]), dict(zip(labels, chances.tolist(), strict=True)))


class Labelled(NamedTuple):
    """All labels with a probability above one half, and the probability of each."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


class Judged(Task):
    """A task about a text or a pair as a whole, predicted at [CLS]."""

    @abstractmethod
    def target(self, record: Record) -> Any:
        """Returns the head's target at [CLS], of shape [1, …]."""

    @abstractmethod
    def answer(self, logits: np.ndarray) -> Any:
        """Returns the answer from the mean of the windows' logits."""

    def units(self, records: Sequence[Record], tokenizer: Tokenizer) -> list[list[Input]]:
        check_texts(records, "text")
        first = tokenizer.pieces([record.text for record in records])
        partners = iter(tokenizer.pieces([record.pair for record in records if record.pair is not None]))
        second = [None if record.pair is None else next(partners) for record in records]
        cut = partial(text_windows, tokenizer, length=self.settings.max_length, stride=self.settings.stride)
        each = zip(records, map(cut, first, second), strict=True)
        return [[Input.of(window, self.target(record)) for window in windows] for record, windows in each]

    def answers(self, records: Sequence[Record], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        return [self.answer(np.concatenate(windows).mean(0)) for windows in logits]


class Classification(Judged):
    loss: ClassVar[str] = "classes"

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
        return label_set(settings, [str(record.label) for record in records], records)

    def target(self, record: Record) -> Any:
        return [NOTHING if record.label is None else number_of(record.label, self.settings.labels, record)]

    def answer(self, logits: np.ndarray) -> Any:
        return Classified.of(self.settings.labels, softmax(logits / self.settings.temperature))

    def gold(self, records: Sequence[Record]) -> list[Any]:
        return [number_of(str(record.label), self.settings.labels, record) for record in records]

    def value(self, answer: Any) -> Any:
        return self.settings.labels.index(answer.label)

    def confidence(self, answers: Sequence[Any]) -> np.ndarray | None:
        chances = np.array([list(answer.probabilities.values()) for answer in answers])
        return np.log(chances.clip(1e-30)) * self.settings.temperature


class Multilabel(Judged):
    loss: ClassVar[str] = "flags"
    figures: ClassVar[tuple[str, ...]] = ("multilabel_f1", "multilabel_macro_f1")

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
        return label_set(settings, [label for record in records for label in record.label or ()])  # type: ignore[union-attr]

    def target(self, record: Record) -> Any:
        target = np.full((1, self.outputs), np.nan if record.label is None else 0.0, np.float32)
        for label in record.label or ():  # type: ignore[union-attr]
            target[0, number_of(label, self.settings.labels, record)] = 1.0
        return target

    def answer(self, logits: np.ndarray) -> Any:
        chances = 1 / (1 + np.exp(-logits / self.settings.temperature))
        named = dict(zip(self.settings.labels, chances.tolist(), strict=True))
        return Labelled(tuple(label for label, chance in named.items() if chance > 0.5), named)

    def gold(self, records: Sequence[Record]) -> list[Any]:
        return [self._flags(record.label) for record in records]

    def value(self, answer: Any) -> Any:
        return self._flags(answer.labels)

    def _flags(self, labels: Any) -> tuple[bool, ...]:
        return tuple(label in labels for label in self.settings.labels)


class Regression(Judged):
    loss: ClassVar[str] = "numbers"
    figures: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
        """Standardises numbers that go beyond ±10 or lie close together: a head's outputs stay near 0, and small differences
        are not learned. A center or scale that the user has set is kept."""
        numbers = np.array([float(record.label) for record in records])  # type: ignore[arg-type]
        told, mean, spread = replace(settings, labels=("number",)), float(numbers.mean()), float(numbers.std())
        apart = np.abs(numbers).max() <= 10 and spread >= max(0.25, abs(mean) / 5)
        if apart or (settings.center, settings.scale) != (0, 1):
            return told
        return replace(told, center=mean, scale=spread or 1.0)

    def target(self, record: Record) -> Any:
        number: Any = np.nan if record.label is None else record.label
        return np.array([[(number - self.settings.center) / self.settings.scale]], np.float32)

    def answer(self, logits: np.ndarray) -> Any:
        return float(logits[0]) * self.settings.scale + self.settings.center
