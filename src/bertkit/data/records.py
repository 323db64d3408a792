"""Labelled examples before they become pieces: one frozen record per kind of task, and how lists of records are split.

A label is None if it is unknown; `place` ("file:line") says where a record came from and is not part of its content.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Record:
    """A text or pair, labelled with a class, a number or a set of classes; `negative` is the third text of a triplet."""

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    negative: str | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A sentence as words, with a label for each, and the number of the document it belongs to."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    document: int = 0
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, and its answers: texts with the character offset of each."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    article: str = ""
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt and its possible continuations; the label is the index of the right one."""

    prompt: str
    options: tuple[str, ...]
    label: int | None = None
    id: str = ""
    place: str = ""


AnyRecord = Record | Words | Question | Choice


def texts(record: AnyRecord) -> tuple[str, ...]:
    """Returns the texts of a record that the model reads, in order."""
    if isinstance(record, Words):
        return (" ".join(record.words),)
    if isinstance(record, Question):
        return record.question, record.context
    if isinstance(record, Choice):
        return record.prompt, *record.options
    return tuple(text for text in (record.text, record.pair, record.negative) if text is not None)


def fingerprint(records: Iterable[AnyRecord]) -> str:
    """Returns a SHA-256 of the contents, in order; it does not depend on where the file lies."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(replace(record, place="")).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def part(record: AnyRecord, parts: int) -> int:
    """Returns 0 to parts - 1 by a hash of the content alone; questions of an article, and equal texts, stay together."""
    article = (record.article or record.context,) if isinstance(record, Question) else texts(record)
    return int.from_bytes(hashlib.sha256("\0".join(article).encode()).digest()[:8], "little") % parts


def halves(records: Sequence[AnyRecord]) -> tuple[list[int], list[int]]:
    """Returns the indices of two halves: one to fit a threshold or temperature on, one to measure it on. They stay halves of
    the tenth that `part` holds out: a hash modulo 10 says nothing about the side."""
    sides = [part(record, 20) // 10 for record in records]
    return [i for i, side in enumerate(sides) if side == 0], [i for i, side in enumerate(sides) if side == 1]
