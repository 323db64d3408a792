"""Maps each text by itself to a pooled vector; texts of similar meaning get close vectors (Sentence-BERT)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertkit.data.records import Record
from bertkit.data.windows import Input, Layout
from bertkit.errors import DataError, InputError, check_choice
from bertkit.tasks.metrics import unit
from bertkit.tasks.task import Task, TaskSettings, check_texts, number_of
from bertkit.text.tokenizer import Tokenizer

OBJECTIVES = ("cosine", "classes", "triplet", "negatives")


class Compared(NamedTuple):
    """The cosine of two texts; if partners are to be found, also its margin over the closest wrong partner."""

    similarity: float
    margin: float


class Similarity(Task):
    layout: ClassVar[Layout] = Layout(by_unit=True)
    loss: ClassVar[str] = "vectors"
    pooled: ClassVar[bool] = False

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
        """Sets the objective by the records: numbers → cosine, classes → classes, triplets or no labels → negatives."""
        labels = {record.label for record in records}
        words = [record for record in records if isinstance(record.label, str)]
        if words and any(isinstance(label, float | int) for label in labels):
            raise DataError(f"label {words[0].label!r}; expected a number, as others have", words[0].place)
        numbers = all(isinstance(label, float | int) for label in labels)
        objective = settings.objective or ("cosine" if numbers else "negatives" if labels == {None} else "classes")
        check_choice("objective", objective, OBJECTIVES)
        if objective == "triplet" and any(record.negative is None for record in records):
            raise InputError("triplets need a negative for every text; name its column, or take objective=negatives")
        if objective in ("cosine", "classes") and None in labels:
            raise InputError("some pairs have a label and some have none; expected one for each, or none at all")
        if objective == "classes" and not settings.labels:
            way = "name them from least to most alike, as in --set labels=contradiction,neutral,entailment"
            raise InputError(f"the labels are classes such as {min(map(str, labels))!r}; {way}")
        largest = max((abs(float(label)) for label in labels if isinstance(label, float | int)), default=1.0)
        return replace(settings, objective=objective, scale=max(1.0, largest) if objective == "cosine" else 1.0)

    @property
    def outputs(self) -> int:
        """The outputs of the layer that only training uses; answers are decoded from the vectors."""
        return max(1, len(self.settings.labels))

    @property
    def finds(self) -> bool:
        """Whether a text's partner is to be found, against its own negative or all others; else similarities are known."""
        return self.settings.objective in ("triplet", "negatives")

    @property
    def figures(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("accuracy",) if self.finds else ("spearman", "pearson")

    def units(self, records: Sequence[Record], tokenizer: Tokenizer) -> list[list[Input]]:
        check_texts(records, "text")
        third = self.finds and all(record.negative is not None for record in records)
        texts = [_texts(record, third) for record in records]
        pieces = tokenizer.pieces([text for several in texts for text in several])
        joined = (tokenizer.join(one, max_length=self.settings.max_length) for one in pieces)
        both = zip(records, texts, strict=True)
        return [[Input.of(next(joined), self._target(record)) for _ in several] for record, several in both]

    def _target(self, record: Record) -> np.ndarray:
        """Returns [1], NaN if the label is unknown; pairs and triplets whose partners are to be found need no label."""
        value = 1.0 if self.finds else np.nan if record.label is None else self._number(record)
        return np.array([value], np.float32)

    def _number(self, record: Record) -> float:
        """Returns the label as a cosine; for classes, its index in the order of labels."""
        if self.settings.objective == "classes":
            return float(number_of(str(record.label), self.settings.labels, record))
        if not isinstance(record.label, float | int):
            raise DataError(f"label {record.label!r}; expected a number, as in training", record.place)
        return float(record.label) / self.settings.scale

    def answers(self, records: Sequence[Record], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        first, second, *third = (unit(np.stack([text[0] for text in side])) for side in zip(*logits, strict=True))
        own = (first * second).sum(1)
        if not self.finds:
            others = own
        elif third:
            others = (first * third[0]).sum(1)
        else:
            scores = first @ second.T
            np.fill_diagonal(scores, -1.0)
            others = scores.max(1)
        return [Compared(float(a), float(a - b)) for a, b in zip(own, others, strict=True)]

    def gold(self, records: Sequence[Record]) -> list[Any]:
        """Returns similarities as cosines or class indices; 1 for each pair if partners are to be found."""
        return [1.0 if self.finds else self._number(record) for record in records]

    def value(self, answer: Any) -> Any:
        return float(answer.margin > 0) if self.finds else answer.similarity


def _texts(record: Record, third: bool) -> list[str]:
    if record.pair is None:
        raise DataError("a text without its partner; expected pairs of texts", record.place)
    return [record.text, record.pair, *([record.negative] if third and record.negative is not None else [])]
