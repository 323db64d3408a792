"""A label for every word, told at its first piece (section 5.3). No word is lost: long sentences are read in windows, and a
word's label comes from the window that shows most on its nearer side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertkit.data.records import Words
from bertkit.data.windows import NOTHING, Input, Layout, cut_windows
from bertkit.errors import InputError
from bertkit.tasks.metrics import entity_scores, softmax
from bertkit.tasks.task import Task, TaskSettings, label_set, number_of
from bertkit.text.tokenizer import Tokenizer


class Tagged(NamedTuple):
    """A label for each word, and how likely it is."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class Tagging(Task):
    layout: ClassVar[Layout] = Layout(capacity=1.0)
    loss: ClassVar[str] = "classes"
    pooled: ClassVar[bool] = False
    figures: ClassVar[tuple[str, ...]] = ("entity_f1", "entity_precision", "entity_recall")

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Words]) -> TaskSettings:
        return label_set(settings, [label for record in records for label in record.labels or ()])

    def units(self, records: Sequence[Words], tokenizer: Tokenizer) -> list[list[Input]]:
        known = list({word: None for record in records for word in record.words})
        pieces = {word: one.ids for word, one in zip(known, tokenizer.words(known), strict=True)}
        sentences = [_sentence(record, number, pieces, tokenizer.unk) for number, record in enumerate(records, start=1)]
        return [self._inputs(tokenizer, records, sentences, index) for index in range(len(records))]

    def _inputs(
        self, tokenizer: Tokenizer, records: Sequence[Words], sentences: list[tuple[np.ndarray, np.ndarray]], index: int
    ) -> list[Input]:
        """A sentence's windows; with context, one that fits is filled up with the sentences of its document around it."""
        record, (ids, firsts) = records[index], sentences[index]
        labels = self.settings.labels
        told = record.labels
        known = [NOTHING] * len(firsts) if told is None else [number_of(label, labels, record) for label in told]
        targets, room = np.array(known, np.int64), self.settings.max_length - 2
        before = after = ids[:0]
        if self.settings.context and len(ids) < room:
            before, after = _around(records, sentences, index, room - len(ids))
        whole, firsts = np.concatenate([before, ids, after]), firsts + len(before)
        inputs = []
        for part in cut_windows(len(whole), room, min(self.settings.stride or max(1, room // 2), room)):
            words = np.flatnonzero((firsts >= part.start) & (firsts < part.stop))
            framed = np.concatenate([[tokenizer.cls], whole[part], [tokenizer.sep]])
            inputs.append(Input(framed, np.zeros_like(framed), firsts[words] - part.start + 1, targets[words], words))
        return inputs

    def answers(self, records: Sequence[Words], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        return [self._answer(len(record.words), *found) for record, *found in zip(records, units, logits, strict=True)]

    def _answer(self, words: int, inputs: Sequence[Input], logits: Sequence[np.ndarray]) -> Tagged:
        best, chances = np.full(words, -1), np.zeros((words, self.outputs))
        for one, values in zip(inputs, logits, strict=True):
            seen = np.minimum(one.places, len(one) - 1 - one.places)  # pieces on the nearer side
            better = seen > best[one.origin]
            best[one.origin[better]] = seen[better]
            chances[one.origin[better]] = softmax(values[better] / self.settings.temperature)
        labels = tuple(self.settings.labels[index] for index in chances.argmax(1))
        return Tagged(labels, tuple(chances.max(1).tolist()))

    @property
    def headline(self) -> str:
        return self.figures[0]

    def gold(self, records: Sequence[Words]) -> list[Any]:
        return [record.labels for record in records]

    def value(self, answer: Any) -> Any:
        return answer.labels

    def score(self, records: Sequence[Words], answers: Sequence[Any]) -> dict[str, float]:
        gold, found = self.gold(records), [answer.labels for answer in answers]
        overall, _ = entity_scores(gold, found)
        right = sum(a == b for ours, theirs in zip(gold, found, strict=True) for a, b in zip(ours, theirs, strict=True))
        accuracy = right / max(1, sum(map(len, gold)))
        return {f"entity_{name}": overall[name] for name in ("f1", "precision", "recall")} | {"accuracy": accuracy}


def _sentence(record: Words, number: int, pieces: dict[str, np.ndarray], unknown: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of all words, and where each word's first piece is. A word without pieces is read as [UNK]."""
    if not record.words:
        raise InputError(f"{record.place or f'sentence {number}'} has no words; expected at least one")
    parts = [pieces[word] if len(pieces[word]) else np.array([unknown], np.int32) for word in record.words]
    sizes = np.array([len(part) for part in parts])
    return np.concatenate(parts), np.cumsum(sizes) - sizes


def _around(
    records: Sequence[Words], sentences: list[tuple[np.ndarray, np.ndarray]], index: int, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the same document before and after a sentence: as many on either side, or more where the other has fewer."""
    before = _beside(records, sentences, index, -1, room)
    after = _beside(records, sentences, index, 1, room)
    right = min(len(after), max(room - len(before), room - room // 2))
    left = min(len(before), room - right)
    return before[len(before) - left :], after[:right]


def _beside(
    records: Sequence[Words], sentences: list[tuple[np.ndarray, np.ndarray]], index: int, step: int, room: int
) -> np.ndarray:
    """Up to `room` pieces of a document on one side of a sentence, the nearest."""
    parts, other, size = [sentences[index][0][:0]], index + step, 0
    while 0 <= other < len(records) and records[other].document == records[index].document and size < room:
        parts.append(sentences[other][0])
        size, other = size + len(parts[-1]), other + step
    joined = np.concatenate(parts if step > 0 else parts[::-1])
    return joined[:room] if step > 0 else joined[max(0, len(joined) - room) :]
