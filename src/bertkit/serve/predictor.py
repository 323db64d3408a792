"""A loaded model, and the methods that ask it.

Texts are packed into batches up to a token budget. Answers are returned in the order of the texts, and no answer depends
on what else was in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from bertkit.bundle.exported import open_bundle
from bertkit.bundle.folder import Bundle
from bertkit.bundle.sentences import POOLINGS
from bertkit.data.packing import Shapes, batches
from bertkit.data.records import Choice, Question, Record, Words
from bertkit.errors import ArtifactError, InputError, check_choice, short
from bertkit.model.batch import Batch
from bertkit.models import DEFAULT
from bertkit.progress import Show, bar, show_nothing
from bertkit.tasks.answering import answer_records
from bertkit.tasks.choice import Chosen
from bertkit.tasks.metrics import entities, softmax, unit
from bertkit.tasks.qa import Answered
from bertkit.tasks.tagging import Tagged
from bertkit.tasks.task import TaskSettings, check_texts
from bertkit.text.tokenizer import Encoding, Pieces, behind_marks

JUDGED = ("classification", "multilabel", "regression")  # the tasks of `classify`
ANSWERS = dict.fromkeys(JUDGED, "classify") | {"tagging": "tag", "qa": "ask", "choice": "choose", "similarity": "embed"}
MANY = 256  # texts from which a progress bar is shown
SCORES = 2**24  # logits of [MASK]s held at once
HEADS = {"fill": "masked", "next": "next"}  # what a model without a task can answer, and the head needed
Spans = list[tuple[int, int]]  # begin and end of words, in characters


class Candidate(NamedTuple):
    """A piece for a [MASK], and its probability."""

    piece: str
    probability: float


class Features(NamedTuple):
    """A text's pieces and their vectors."""

    pieces: list[str]
    offsets: np.ndarray  # [T, 2] characters of the text; (0, 0) for special pieces
    vectors: np.ndarray  # [layers, T, D]


class Attention(NamedTuple):
    """A text's pieces, and their attention weights."""

    pieces: list[str]
    weights: np.ndarray  # [layers, heads, T, T]


class Entity(NamedTuple):
    """A span of a text, and its kind."""

    text: str
    kind: str
    begin: int  # in characters
    end: int
    probability: float  # of its least certain word


def load(
    name: Path | str = DEFAULT, *, device: str = "auto", precision: str = "fp32", compile: bool = False, budget: int = 0
) -> Model:
    """Loads a model folder or export, a Google checkpoint, a hub model or the model in the package."""
    return Model(open_bundle(name), device=device, precision=precision, compile=compile, budget=budget)


class Model:
    """A network with its tokenizer, on a device. `compile` trades a slow start for faster batches; `budget` is in tokens per
    batch, 0 for the default; `threads` is the number of CPU threads, 0 for the default."""

    quiet = False  # True hides progress bars, for the server and workers

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        precision: str = "fp32",
        compile: bool = False,
        budget: int = 0,
        threads: int = 0,
    ):
        self.bundle, self.tokenizer, self.precision, self.network = bundle, bundle.tokenizer, precision, bundle.network
        self.runner = bundle.start(device, precision, compile, threads)
        self.device, self.config = self.runner.device, self.runner.config
        self.budget = max(budget or self.runner.budget, self.config.positions)
        self.shapes = _shapes(self.budget, self.config.positions, 2.0 if self.runner.grids else 3.0) if compile else None

    @overload
    def fill(self, texts: str, *, top: int = 5, truncate: bool = False) -> list[list[Candidate]]: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Sequence[str], *, top: int = 5, truncate: bool = False) -> list[list[list[Candidate]]]: ...
    def fill(self, texts: str | Sequence[str], *, top: int = 5, truncate: bool = False) -> Any:
        """Returns the likeliest pieces for each [MASK] of a text; for a list of texts, a list of answers."""
        if isinstance(texts, str):
            return self.fill([texts], top=top, truncate=truncate)[0]
        self.need("masked", "fill")
        if not 1 <= top <= self.config.vocabulary:
            raise InputError(f"top is {top}; expected 1 to {self.config.vocabulary:,}")
        encodings = self.encode_texts(texts, truncate=truncate, read_mask=True)
        for index, encoding in enumerate(encodings):
            if not (encoding.ids == self.tokenizer.mask).any():
                raise InputError(f"no [MASK] in {short(texts[index])!r}; write [MASK] where a word is to be filled in")
        return self.each("filling", encodings, lambda batch: self._fill_batch(batch, top))

    def embed(
        self, texts: Sequence[str], *, pooling: str = "", normalize: bool | None = None, truncate: bool = False
    ) -> np.ndarray:
        """Returns a vector for each text [N, D], pooled by mean, max or cls; by default as the model was fine-tuned."""
        tuned = self.bundle.task.settings if self.bundle.task else TaskSettings()
        pooling, normalize = pooling or tuned.pooling, tuned.normalize if normalize is None else normalize
        check_choice("pooling", pooling, POOLINGS)
        encodings = self.encode_texts(texts, truncate=truncate)
        pool = partial(self.runner.pooled, kind=pooling)
        vectors = np.array(self.each("embedding", encodings, pool), np.float32).reshape(-1, self.config.width)
        return unit(vectors) if normalize else vectors

    def features(self, texts: Sequence[str], *, layers: Sequence[int] = (-1,), truncate: bool = False) -> list[Features]:
        """Returns the vectors of every piece at the chosen layers: 0 is the embeddings' output, -1 the last layer's."""
        count = self.config.layers + 1
        bad = [layer for layer in layers if not -count <= layer < count]
        if bad or not layers:
            found = bad[0] if bad else "at all"
            raise InputError(f"no layer {found}; expected 0 (embeddings) to {count - 1}, or -1 to -{count}")
        encodings = self.encode_texts(texts, truncate=truncate)
        vectors = self.each("encoding", encodings, lambda batch: _split(self.runner.states(batch, layers), batch))
        both = zip(encodings, vectors, strict=True)
        return [Features(self.spelled(one.ids), one.offsets, found.swapaxes(0, 1)) for one, found in both]

    def attention(self, texts: Sequence[str], *, truncate: bool = False) -> list[Attention]:
        """Returns the attention weights of every layer and head."""
        encodings = self.encode_texts(texts, truncate=truncate)
        found = self.each("looking", encodings, self.runner.looks)
        return [Attention(self.spelled(encoding.ids), one) for encoding, one in zip(encodings, found, strict=True)]

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of ids; an id that only the model has, not the tokenizer, is shown as a number."""
        known = self.tokenizer.vocabulary
        return [known[index] if index < len(known) else f"[{index}]" for index in ids]

    @overload
    def next(self, a: str, b: str, *, truncate: bool = False) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def next(self, a: Sequence[str], b: Sequence[str], *, truncate: bool = False) -> np.ndarray: ...
    def next(self, a: Any, b: Any, *, truncate: bool = False) -> Any:
        """Returns the probability that b follows a; for two lists, an array."""
        if isinstance(a, str) or isinstance(b, str):
            return float(self.next([a], [b], truncate=truncate)[0])
        self.need("next", "next")
        check_texts([Record(*both) for both in _paired(a, b)], "text", "pair")
        encodings = self.encode_texts(a, b, truncate=truncate)
        return np.array(self.each("judging", encodings, lambda b: softmax(self.runner.next_logits(b))[:, 0]), np.float32)

    def classify(self, texts: Any, pairs: Any = None) -> Any:
        """Returns a label, labels or a number for each text, or for each pair of texts."""
        if isinstance(texts, str):
            return self.classify([texts], None if pairs is None else [pairs])[0]
        texts = list(texts)
        pairs = [None] * len(texts) if pairs is None else pairs
        return self.answer([Record(*both) for both in _paired(texts, pairs)], *JUDGED)

    @overload
    def tag(self, texts: str) -> list[Entity]: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, texts: Sequence[str]) -> list[list[Entity]]: ...
    def tag(self, texts: Any) -> Any:
        """Returns the entities of each text, with character offsets; with plain labels, each labelled word is one."""
        if isinstance(texts, str):
            return self.tag([texts])[0]
        texts = list(texts)
        spans = [word_spans(pieces, text) for pieces, text in zip(self.tokenizer.pieces(texts), texts, strict=True)]
        return self.tag_words(texts, spans, range(len(texts)))

    def tag_words(self, texts: Sequence[str], spans: Sequence[Spans], documents: Sequence[int]) -> list[list[Entity]]:
        """Returns the entities of sentences whose words and documents are given."""
        words = [tuple(text[begin:end] for begin, end in each) for text, each in zip(texts, spans, strict=True)]
        records = [Words(each, document=document) for each, document in zip(words, documents, strict=True)]
        answers = self.answer(records, "tagging")
        return [_entities(*found) for found in zip(texts, spans, answers, strict=True)]

    @overload
    def ask(self, question: str, context: str) -> Answered: ...  # type: ignore[overload-overlap]
    @overload
    def ask(self, question: Sequence[str], context: Sequence[str]) -> list[Answered]: ...
    def ask(self, question: Any, context: Any) -> Any:
        """Returns the span of the context that answers the question; "" if the model finds none."""
        if isinstance(question, str):
            return self.ask([question], [context])[0]
        return self.answer([Question(*both) for both in _paired(question, context)], "qa")

    def choose(self, prompt: str, options: Sequence[str]) -> Chosen:
        """Returns which option fits the prompt best, and each option's probability."""
        if isinstance(options, str) or not len(options):
            raise InputError(f"the options are {options!r}; expected a list of texts")
        return self.answer([Choice(prompt, tuple(options))], "choice")[0]

    def answer(self, records: Sequence[Any], *tasks: str) -> list[Any]:
        """Returns a fine-tuned model's answers to records of its task."""
        task = self.bundle.task
        if task is None or (tasks and task.settings.task not in tasks):
            found = f"a {task.settings.task} model" if task else "not fine-tuned"
            raise ArtifactError(f"this model is {found}; expected one fine-tuned for {' or '.join(tasks) or 'a task'}")
        with self._bar("answering", len(records)) as show:
            how: dict[str, Any] = self._amounts(len(records)) | {"precision": self.precision, "show": show}
            return list(answer_records([self.runner], task, self.tokenizer, records, self.device, **how))

    def encode(self, ids: Sequence[Sequence[int] | np.ndarray]) -> list[np.ndarray]:
        """Returns the last layer's vectors [T, D] of each sequence of ids, which include the special ones."""
        rows = [np.asarray(sequence, np.int64) for sequence in ids]
        for index, row in enumerate(rows):
            if row.size and not (row.min() >= 0 and row.max() < self.config.vocabulary):
                bad = int(row.max() if row.min() >= 0 else row.min())
                raise InputError(f"sequence {index + 1} holds id {bad}; expected 0 to {self.config.vocabulary - 1}")
            self._check_length(len(row), f"sequence {index + 1}")
        encodings = [Encoding(row, np.zeros((len(row), 2)), np.zeros(len(row), bool), np.zeros_like(row)) for row in rows]
        return self.each("encoding", encodings, lambda batch: _split(self.runner.vectors(batch), batch))

    def save(self, folder: Path | str) -> None:
        """Writes the artifact, completely or not at all."""
        self.bundle.save(folder)

    def describe(self) -> dict[str, Any]:
        """Returns the model's sizes, parameters by part, vocabulary and provenance."""
        config, tokenizer = self.config, self.tokenizer
        shape = {name: getattr(config, name) for name in ("layers", "width", "heads", "feedforward", "positions")}
        task = self.bundle.task.settings if self.bundle.task else None
        told = {"task": task.task, "labels": list(task.labels), "max_length": task.max_length} if task else {}
        facts = {"family": self.bundle.family.name, **told, **shape, "parameters": self.runner.parameters()}
        pieces = {"pieces": len(tokenizer), "cased": tokenizer.cased, "max_word": tokenizer.max_word}
        return facts | {"vocabulary": pieces, "answers": self.answers(), "provenance": self.bundle.provenance}

    def answers(self) -> list[str]:
        """Returns the names of the methods that this model supports."""
        task = self.bundle.task
        own = [ANSWERS[task.settings.task]] if task else [verb for verb, head in HEADS.items() if self.runner.can(head)]
        return list(dict.fromkeys(["embed", "features", *own]))

    def need(self, head: str, verb: str) -> None:
        """Raises an error if the model lacks the head that the verb needs."""
        if not self.runner.can(head):
            kind = {"masked": "masked-language", "next": "next-sentence"}[head]
            raise ArtifactError(f"this model has no {kind} head; {verb} needs one that was pre-trained with it")

    def encode_texts(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, truncate: bool, read_mask: bool = False
    ) -> list[Encoding]:
        """Encodes texts and checks them; texts that are too long are refused, or cut with `truncate`."""
        if isinstance(texts, str):
            raise InputError("expected a list of texts, found one string; put it into a list")
        tuned = self.bundle.task.settings.max_length if self.bundle.task and pairs is None else self.config.positions
        limit = min(tuned, self.config.positions) if truncate else None
        encodings = self.tokenizer.encode_batch(list(texts), pairs, max_length=limit, read_mask=read_mask)
        specials = 2 if pairs is None else 3
        for index, encoding in enumerate(encodings):
            if len(encoding) == specials:
                raise InputError(f"text {index + 1} is empty; expected at least one character to read")
            self._check_length(len(encoding), f"text {index + 1}", "; shorten it, or let it be cut (truncate)")
        return encodings

    def _check_length(self, length: int, what: str, advice: str = "") -> None:
        task, longest = self.bundle.task and self.bundle.task.settings, self.config.positions
        longest = min(longest, task.max_length) if task and task.task == "similarity" else longest
        if not 1 <= length <= longest:
            raise InputError(f"{what} has {length} pieces; this model takes 1 to {longest}{advice}")

    def each(self, title: str, encodings: Sequence[Encoding], answer: Callable[[Batch], Iterable[Any]]) -> list[Any]:
        """Applies `answer` batch by batch, and returns the answers in the order of the encodings."""
        answers: list[Any] = [None] * len(encodings)
        ids, segments, done = [e.ids for e in encodings], [e.segments for e in encodings], 0
        with self._bar(title, len(encodings)) as show:
            how: dict[str, Any] = self._amounts(len(ids)) | {"shapes": self.shapes, "grids": self.runner.grids}
            for members, told in batches(ids, segments, answer, **how):
                for index, found in zip(members.tolist(), told, strict=False):
                    answers[index] = found
                done += len(members)
                show(done)
        return answers

    def _amounts(self, texts: int) -> dict[str, int]:
        """Returns the tokens of a batch and, for many texts, how many batches are computed at once."""
        return self.runner.bulk(self.budget) if texts >= MANY else {"budget": self.budget}

    def _bar(self, title: str, count: int) -> AbstractContextManager[Show]:
        return bar(title, count) if count >= MANY and not self.quiet else nullcontext(show_nothing)

    def masked(self, batch: Batch, use: Callable[[np.ndarray], Iterable[Any]]) -> list[list[Any]]:
        """Returns, for each sequence, the result of `use` for the logits of each [MASK]. `use` gets a few rows at a time, as
        a row is as long as the vocabulary."""
        places = np.flatnonzero(np.asarray(batch.ids) == self.tokenizer.mask)
        parts = self.runner.masked_logits(batch, places, max(1, SCORES // self.config.vocabulary))
        found = [row for logits in parts for row in use(logits)]
        return [found[begin:end] for begin, end in pairwise(np.searchsorted(places, batch.boundaries).tolist())]

    def _fill_batch(self, batch: Batch, top: int) -> list[list[list[Candidate]]]:
        likeliest = self.masked(batch, partial(_likeliest, count=top))
        return [[[*map(Candidate, self.spelled(ids), chances)] for ids, chances in masks] for masks in likeliest]


def plain(value: Any, digits: int | None = None) -> Any:
    """Returns an answer as values for JSON, with floats rounded to `digits`."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, dict):
        return {name: plain(part, digits) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return round(value, digits) if isinstance(value, float) and digits is not None else value


def word_spans(pieces: Pieces, text: str) -> Spans:
    """Returns the character spans of a text's words, as the tokenizer splits it."""
    begins = np.flatnonzero(pieces.starts)
    if not len(begins):
        raise InputError(f"nothing to read in {short(text)!r}; expected at least one word")
    ends = pieces.offsets[np.append(begins[1:], len(pieces)) - 1, 1].tolist()
    return [(begin, behind_marks(text, end)) for begin, end in zip(pieces.offsets[begins, 0].tolist(), ends, strict=True)]


def _paired(first: Sequence[Any], second: Any) -> Iterable[tuple[Any, Any]]:
    """Pairs the elements of two lists of equal length."""
    if isinstance(second, str) or second is None or len(first) != len(second):
        found = "a single text" if isinstance(second, str) else 0 if second is None else len(second)
        raise InputError(f"{len(first)} texts cannot pair with {found}; give one partner to each")
    return zip(first, second, strict=True)


def _entities(text: str, words: Spans, answer: Tagged) -> list[Entity]:
    found = []
    for kind, first, behind in entities(answer.labels):
        begin, end = words[first][0], words[behind - 1][1]
        found.append(Entity(text[begin:end], kind, begin, end, min(answer.probabilities[first:behind])))
    return found


def _likeliest(logits: np.ndarray, count: int) -> Iterable[tuple[list[int], list[float]]]:
    """Returns for each row the ids and probabilities of the likeliest pieces, the likeliest first."""
    chances = softmax(logits)
    found = np.argpartition(-chances, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(found, np.argsort(-np.take_along_axis(chances, found, 1), axis=1, kind="stable"), 1)
    return zip(found.tolist(), np.take_along_axis(chances, found, 1).tolist(), strict=True)


def _shapes(budget: int, positions: int, crowding: float) -> Shapes:
    """Returns shapes with doubling lengths up to the model's longest; without grids, more crowding costs nothing."""
    lengths = [positions]
    while lengths[0] > 32:
        lengths.insert(0, -(-lengths[0] // 2))
    return Shapes(budget, tuple(lengths), crowding)


def _split(rows: np.ndarray, batch: Batch) -> list[np.ndarray]:
    """Splits the rows by sequence."""
    return [part.copy() for part in np.split(rows, np.asarray(batch.boundaries)[1:-1])]
