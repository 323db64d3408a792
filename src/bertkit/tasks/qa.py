"""Question answering (sections 4.2 and 4.3): the likeliest span of the context, over all of its windows.

An answer is always an exact part of the context. If the null span at [CLS] beats the best span by more than the artifact's
threshold, the answer is that there is none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertkit.data.records import Question
from bertkit.data.windows import NOTHING, Input, Layout, cut_windows
from bertkit.tasks.metrics import softmax, squad_scores
from bertkit.tasks.task import Task, TaskSettings, check_texts
from bertkit.text.tokenizer import Pieces, Tokenizer, behind_marks

BEST = 20  # spans kept per context


class Span(NamedTuple):
    """A span of the context."""

    text: str
    begin: int  # in characters
    end: int
    probability: float


class Answered(NamedTuple):
    """The answer, "" for none; its probability; the best spans; and by how much the null score exceeds the best span's."""

    text: str
    begin: int
    end: int
    probability: float
    best: list[Span]
    null_margin: float


class QuestionAnswering(Task):
    layout: ClassVar[Layout] = Layout(picks=True, capacity=1.0)
    loss: ClassVar[str] = "picks"
    pooled: ClassVar[bool] = False
    figures: ClassVar[tuple[str, ...]] = ("f1", "exact")
    outputs = 2  # start, end

    @classmethod
    def learn(cls, settings: TaskSettings, records: Sequence[Question]) -> TaskSettings:
        """Sets a threshold if some questions have no answer, so that the model may give none."""
        may_pass = any(record.impossible for record in records) and settings.threshold is None
        return replace(settings, threshold=0.0 if may_pass else settings.threshold)

    def units(self, records: Sequence[Question], tokenizer: Tokenizer) -> list[list[Input]]:
        check_texts(records, "question", "context")
        contexts = {record.context: None for record in records}
        pieces = dict(zip(contexts, tokenizer.pieces(list(contexts)), strict=True))
        questions = tokenizer.pieces([record.question for record in records])
        room = (self.settings.max_length - 2 - tokenizer.between) // 2  # at least half is for the context
        most = min(self.settings.question_length, room)
        both = zip(records, questions, strict=True)
        return [self._inputs(record, question[:most], pieces[record.context], tokenizer) for record, question in both]

    def _inputs(self, record: Question, question: Pieces, context: Pieces, tokenizer: Tokenizer) -> list[Input]:
        begins = len(question) + 1 + tokenizer.between  # where the context begins in a window
        room = self.settings.max_length - begins - 1
        span = _pieces_of(record, context) if record.answers else None
        inputs = []
        stride = min(self.settings.stride or min(128, max(1, room // 2)), room)
        for part in cut_windows(len(context), room, stride):
            encoding = tokenizer.join(question, context[part])
            target = [NOTHING, NOTHING] if span is None and not record.impossible else [0, 0]
            if span and part.start <= span[0] and span[1] < part.stop:
                target = [place - part.start + begins for place in span]
            everywhere = np.arange(len(encoding))
            inputs.append(Input(encoding.ids, encoding.segments, everywhere, np.array(target), encoding.offsets))
        return inputs

    def answers(self, records: Sequence[Question], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        return [self._answer(record, *found) for record, *found in zip(records, units, logits, strict=True)]

    def _answer(self, record: Question, inputs: Sequence[Input], logits: Sequence[np.ndarray]) -> Answered:
        spans = dict[tuple[int, int], float]()
        for one, values in zip(inputs, logits, strict=True):
            for begin, end, score in _best_spans(one, values, self.settings.answer_length):
                place = begin, behind_marks(record.context, end)
                spans[place] = max(score, spans.get(place, -np.inf))
        null = min(float(values[0].sum()) for values in logits)
        ranked = sorted(spans.items(), key=lambda item: -item[1])[:BEST]
        chances = softmax(np.array([score for _, score in ranked] + [null]) / self.settings.temperature)
        best = [Span(record.context[a:b], a, b, float(p)) for ((a, b), _), p in zip(ranked, chances, strict=False)]
        margin = null - (ranked[0][1] if ranked else -1e4)
        if not best or (self.settings.threshold is not None and margin > self.settings.threshold):
            return Answered("", 0, 0, float(chances[-1]), best, float(margin))
        return Answered(*best[0], best, float(margin))

    def gold(self, records: Sequence[Question]) -> list[Any]:
        return [tuple(text for text, _ in record.answers) for record in records]

    def value(self, answer: Any) -> Any:
        return answer.text

    def score(self, records: Sequence[Question], answers: Sequence[Any]) -> dict[str, float]:
        return squad_scores(self.gold(records), [answer.text for answer in answers])


def _pieces_of(record: Question, context: Pieces) -> tuple[int, int] | None:
    """Returns the first and last piece of the first gold answer; None if the tokenizer dropped all of it."""
    text, begin = record.answers[0]
    first = int(np.searchsorted(context.offsets[:, 1], begin, side="right"))
    last = int(np.searchsorted(context.offsets[:, 0], begin + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _best_spans(one: Input, logits: np.ndarray, longest: int) -> list[tuple[int, int, float]]:
    """Returns a window's likeliest spans as character offsets and scores: in order, not too long, within the context."""
    inside = np.flatnonzero((one.segments == 1) & (one.origin[:, 1] > one.origin[:, 0]))
    if not len(inside):
        return []
    first, last = inside[0], inside[-1] + 1
    scores = logits[first:last, 0, None] + logits[None, first:last, 1]  # [starts, ends]
    allowed = np.tri(len(scores), k=longest - 1, dtype=bool) & ~np.tri(len(scores), k=-1, dtype=bool)
    scores = np.where(allowed, scores, -np.inf)
    best = np.argpartition(-scores, min(BEST, scores.size - 1), axis=None)[:BEST]
    starts, ends = np.unravel_index(best, scores.shape)
    begin, end = one.origin[first + starts, 0], one.origin[first + ends, 1]
    found = zip(begin.tolist(), end.tolist(), scores[starts, ends].tolist(), strict=True)
    return [span for span in found if np.isfinite(span[2])]
