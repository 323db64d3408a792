"""What a labelled example is before it becomes pieces: one frozen record per kind of question, and how lists of them split.

A label is None where it is unknown; `place` ("file:line") says where a record came from and is no part of its content.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Record:
    """A text, or a pair, with a class, a number or a set of classes; `negative` is the third text of a triplet."""

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    negative: str | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A sentence cut into words, with a label for each, and the number of the document it stands in."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    document: int = 0
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, and its answers: texts with the character where each begins."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    article: str = ""
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt and its possible continuations; the label is the number of the right one."""

    prompt: str
    options: tuple[str, ...]
    label: int | None = None
    id: str = ""
    place: str = ""


AnyRecord = Record | Words | Question | Choice


def texts(record: AnyRecord) -> tuple[str, ...]:
    """Everything in a record that is read, in order."""
    if isinstance(record, Words):
        return (" ".join(record.words),)
    if isinstance(record, Question):
        return record.question, record.context
    if isinstance(record, Choice):
        return record.prompt, *record.options
    return tuple(text for text in (record.text, record.pair, record.negative) if text is not None)


def fingerprint(records: Iterable[AnyRecord]) -> str:
    """SHA-256 over the contents, in order: the same data gives the same fingerprint wherever its file lies."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(replace(record, place="")).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def part(record: AnyRecord, parts: int) -> int:
    """0 to parts - 1 by a hash, whatever the order or company: an article's questions, and equal texts, stay together."""
    article = (record.article or record.context,) if isinstance(record, Question) else texts(record)
    return int.from_bytes(hashlib.sha256("\0".join(article).encode()).digest()[:8], "little") % parts


def halves(records: Sequence[AnyRecord]) -> tuple[list[int], list[int]]:
    """The indices of two halves: one to fit a threshold or a temperature on, one to measure it on. Also of the tenth that
    `part` holds out: its remainder by 10 says nothing about the side."""
    sides = [part(record, 20) // 10 for record in records]
    return [i for i, side in enumerate(sides) if side == 0], [i for i, side in enumerate(sides) if side == 1]
