"""Texts as vectors that lie close when the texts mean the same (Sentence-BERT): each is read by itself and pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from bertkit.data.records import Record
from bertkit.data.windows import NOTHING, Input, Layout
from bertkit.errors import DataError, InputError
from bertkit.tasks.task import Task, TaskSettings, check_texts, number_of
from bertkit.text.tokenizer import Tokenizer

OBJECTIVES = ("cosine", "classes", "triplet", "negatives")


class Similarity(Task):
    layout: ClassVar[Layout] = Layout(by_unit=True)
    loss: ClassVar[str] = "vectors"
    pooled: ClassVar[bool] = False
    figures: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
        """The objective that the records ask for: numbers → cosine, classes → classes, triplets or nothing → negatives."""
        labels = {record.label for record in records}
        numbers = all(isinstance(label, float) for label in labels)
        told = "cosine" if numbers else "negatives" if labels == {None} else "classes"
        objective = settings.objective or told
        if objective not in OBJECTIVES:
            raise InputError(f"objective is {objective!r}; expected one of {', '.join(OBJECTIVES)}")
        if objective == "triplet" and any(record.negative is None for record in records):
            raise InputError("triplets need a negative for every text; name its column, or take objective=negatives")
        classes = tuple(sorted(map(str, labels))) if objective == "classes" else ()
        return replace(settings, objective=objective, labels=settings.labels or classes)

    @property
    def outputs(self) -> int:
        """Of the map that is there for training alone; what is decoded are the vectors."""
        return max(1, len(self.settings.labels))

    def units(self, records: Sequence[Record], tokenizer: Tokenizer) -> list[list[Input]]:
        check_texts(records, lambda record: record.text)
        third = self.settings.objective in ("triplet", "negatives") and all(r.negative is not None for r in records)
        return [[self._input(text, record, tokenizer) for text in _texts(record, third)] for record in records]

    def _input(self, text: str, record: Record, tokenizer: Tokenizer) -> Input:
        target: Any = NOTHING if record.label is None else record.label
        if self.settings.objective == "classes" and record.label is not None:
            target = number_of(record.label, self.settings.labels, record)
        elif self.settings.objective in ("triplet", "negatives"):
            target = 0.0
        return Input.of(tokenizer.encode(text, max_length=self.settings.max_length), np.array([target], np.float32))

    def answers(self, records: Sequence[Record], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        """How similar the two texts are, from -1 to 1."""
        return [_cosine(found[0][0], found[1][0]) for found in logits]

    def gold(self, records: Sequence[Record]) -> list[Any]:
        """Similarities as given; of classes, how high a class stands in the order of labels."""
        if self.settings.objective == "classes":
            return [self.settings.labels.index(str(record.label)) for record in records]
        return [1.0 if record.label is None else record.label for record in records]


def _texts(record: Record, third: bool) -> list[str]:
    if record.pair is None:
        raise DataError("a text without its partner; expected pairs of texts", record.place)
    return [record.text, record.pair, *([record.negative] if third and record.negative is not None else [])]


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(1e-12, float(np.linalg.norm(a) * np.linalg.norm(b))))
