"""Predicts a label for every word at its first piece (section 5.3). No word is lost: long sentences are read in windows, and
a word's label comes from the window with the most context on the word's shorter side."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertkit.data.records import Words
from bertkit.data.windows import NOTHING, Input, Layout, cut_windows
from bertkit.errors import InputError
from bertkit.tasks.metrics import accuracy, entity_scores, softmax
from bertkit.tasks.task import Task, TaskSettings, label_set, number_of
from bertkit.text.tokenizer import Tokenizer


class Tagged(NamedTuple):
    """A label for each word, and its probability."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


class Tagging(Task):
    layout: ClassVar[Layout] = Layout(capacity=1.0)
    loss: ClassVar[str] = "classes"
    pooled: ClassVar[bool] = False
    figures: ClassVar[tuple[str, ...]] = ("entity_f1",)

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Words]) -> TaskSettings:
        return label_set(settings, [label for record in records for label in record.labels or ()])

    def units(self, records: Sequence[Words], tokenizer: Tokenizer) -> list[list[Input]]:
        known = list({word: None for record in records for word in record.words})
        pieces = {word: one.ids for word, one in zip(known, tokenizer.words(known), strict=True)}
        sentences = [_sentence(record, number, pieces, tokenizer.unk) for number, record in enumerate(records, start=1)]
        row = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in sentences)])
        sizes, most = np.array([len(ids) for ids, _ in sentences], np.int64), self.settings.max_length - 2
        begins = np.cumsum(sizes) - sizes
        free = (most - sizes).clip(0) if self.settings.context else np.zeros_like(sizes)
        left, right = _around(np.array([record.document for record in records]), sizes, free)
        shown = [row[a:b] for a, b in zip(begins - left, begins + sizes + right, strict=True)]
        firsts = [places + before for (_, places), before in zip(sentences, left, strict=True)]
        return [self._inputs(tokenizer, *one) for one in zip(records, shown, firsts, strict=True)]

    def _inputs(self, tokenizer: Tokenizer, record: Words, ids: np.ndarray, firsts: np.ndarray) -> list[Input]:
        """Returns a sentence's windows, including its context; `firsts` are the positions of the words' first pieces."""
        told = [None] * len(firsts) if record.labels is None else record.labels
        targets = np.array([NOTHING if one is None else number_of(one, self.settings.labels, record) for one in told])
        inputs, room = [], self.settings.max_length - 2
        for part in cut_windows(len(ids), room, min(self.settings.stride or max(1, room // 2), room)):
            words = np.flatnonzero((firsts >= part.start) & (firsts < part.stop))
            framed = np.concatenate([[tokenizer.cls], ids[part], [tokenizer.sep]])
            inputs.append(Input(framed, np.zeros_like(framed), firsts[words] - part.start + 1, targets[words], words))
        return inputs

    def answers(self, records: Sequence[Words], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        return [self._answer(len(record.words), *found) for record, *found in zip(records, units, logits, strict=True)]

    def _answer(self, words: int, inputs: Sequence[Input], logits: Sequence[np.ndarray]) -> Tagged:
        best, chances = np.full(words, -1), np.zeros((words, self.outputs))
        for one, values in zip(inputs, logits, strict=True):
            seen = np.minimum(one.places, len(one) - 1 - one.places)  # pieces on the shorter side
            better = seen > best[one.origin]
            best[one.origin[better]] = seen[better]
            chances[one.origin[better]] = softmax(values[better] / self.settings.temperature)
        labels = tuple(self.settings.labels[index] for index in chances.argmax(1))
        return Tagged(labels, tuple(chances.max(1).tolist()))

    def gold(self, records: Sequence[Words]) -> list[Any]:
        return [record.labels for record in records]

    def value(self, answer: Any) -> Any:
        return answer.labels

    def score(self, records: Sequence[Words], answers: Sequence[Any]) -> dict[str, float]:
        gold, found = self.gold(records), [answer.labels for answer in answers]
        overall, _ = entity_scores(gold, found)
        right = accuracy(list(chain(*gold)), list(chain(*found)))
        return {f"entity_{name}": overall[name] for name in ("f1", "precision", "recall")} | {"accuracy": right}


def _sentence(record: Words, number: int, pieces: dict[str, np.ndarray], unknown: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pieces of all words, and the position of each word's first. A word without pieces is read as [UNK]."""
    if not record.words:
        raise InputError(f"{record.place or f'sentence {number}'} has no words; expected at least one")
    parts = [pieces[word] if len(pieces[word]) else np.array([unknown], np.int32) for word in record.words]
    sizes = np.array([len(part) for part in parts])
    return np.concatenate(parts), np.cumsum(sizes) - sizes


def _around(documents: np.ndarray, sizes: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many pieces of its document to show before and after each sentence: as many on each side, or more on one
    where the other has fewer."""
    ends = np.cumsum(sizes)
    last = np.flatnonzero(np.append(np.diff(documents), 1)[: len(ends)])  # the last sentence of each document
    document = np.searchsorted(last, np.arange(len(ends)))
    before, after = ends - sizes - np.append(0, ends[last])[document], ends[last][document] - ends
    right = np.minimum(after, np.maximum(room - before, room - room // 2))
    return np.minimum(before, room - right), right
