"""Checks data before training: rows, labels, lengths in pieces, texts that repeat or leak between splits, bad rows.

Texts that differ only in case and white space count as the same.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from bertkit.data.readers import Table
from bertkit.data.records import AnyRecord, Choice, Question, Words, texts
from bertkit.text.memo import CorpusEncoder
from bertkit.text.tokenizer import Tokenizer

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}
BLOCK = 4096  # texts encoded at a time
SHOWN = 5  # examples shown per finding


def check_data(splits: Mapping[str, Table], tokenizer: Tokenizer | None, max_length: int) -> dict[str, Any]:
    """Returns statistics and suspected faults of the splits, best read with bad="skip"; the first is the training split.

    Without a tokenizer, lengths are counted in words.
    """
    encoder = CorpusEncoder(tokenizer) if tokenizer else None
    keys = {name: [_key(record) for record in table.records] for name, table in splits.items()}
    found = {name: _check_split(table, keys[name], encoder, max_length) for name, table in splits.items()}
    leaks = {}
    for first, second in combinations(splits, 2):
        there = dict(zip(keys[first], splits[first].records, strict=True))
        shared = [(there[key], r) for key, r in zip(keys[second], splits[second].records, strict=True) if key in there]
        leaks[f"{first}, {second}"] = dict(rows=len(shared), examples=_places(shared))
    trained, *others = found.values()
    unseen = sorted({label for other in others for label in other["labels"]} - set(trained["labels"]) - {"unlabelled"})
    once = sorted(label for label, count in trained["labels"].items() if count == 1)
    told = dict(max_length=max_length, unit="pieces" if tokenizer else "words", splits=found, leaks=leaks)
    return told | dict(labels_only_once=once, labels_not_in_training=unseen)


def describe_check(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the report as lines of text."""
    for name, split in report["splits"].items():
        yield f"{name}: {split['rows']:,} rows, {split['skipped']:,} bad rows skipped"
        yield from (f"  {complaint}" for complaint in split["complaints"])
        total = sum(split["labels"].values())
        counts = [f"{label} {count:,} ({count / total:.1%})" for label, count in split["labels"].items()]
        yield f"  labels: {', '.join(counts[:20])}{' …' * (len(counts) > 20)}{_spell(split['numbers'])}"
        over = f"{split['long']:,} rows over {report['max_length']} are {split['long_are']}"
        yield f"  {report['unit']}: {_spell(split['lengths'])}; {over}"
        yield f"  repeated: {split['repeated']:,} rows, {split['contradicting']:,} with another label"
        yield from (f"    {example}" for example in split["examples"])
    for pair, leak in report["leaks"].items():
        yield from (f"{pair}: {leak['rows']:,} rows in both", *(f"    {example}" for example in leak["examples"]))
    for finding in ("labels_only_once", "labels_not_in_training"):
        if report[finding]:
            yield f"{finding.replace('_', ' ')}: {', '.join(report[finding][:20])}"


def _check_split(table: Table, keys: list[bytes], encoder: CorpusEncoder | None, max_length: int) -> dict[str, Any]:
    first, again = dict[bytes, AnyRecord](), []
    for key, record in zip(keys, table.records, strict=True):
        if first.setdefault(key, record) is not record:
            again.append((first[key], record))
    labels = [_labels(record) for record in table.records]
    numbers = [label for each in labels for label in each if isinstance(label, float)]
    counts = Counter(label for each in labels for label in each if isinstance(label, str))
    lengths = _lengths(table, encoder)
    return dict(
        file=str(table.path),
        rows=len(table.records),
        skipped=table.skipped,
        complaints=table.complaints,
        labels=dict(counts.most_common()),
        numbers=dict(lowest=min(numbers), mean=sum(numbers) / len(numbers), highest=max(numbers)) if numbers else {},
        lengths={name: int(np.quantile(lengths, share, method="higher")) for name, share in QUANTILES.items()},
        long=int((lengths > max_length).sum()),
        long_are="read in windows" if table.task in ("qa", "tagging") else "truncated",
        repeated=len(again),
        contradicting=sum(_labels(a) != _labels(b) for a, b in again),
        examples=_places(again),
    )


def _lengths(table: Table, encoder: CorpusEncoder | None) -> np.ndarray:
    """Returns the length in pieces of each record's longest sequence, including special pieces."""
    parts = [texts(record) for record in table.records]
    row = [text for part in parts for text in part]
    if encoder:
        blocks = [np.diff(encoder.encode(row[begin : begin + BLOCK])[1]) for begin in range(0, len(row), BLOCK)]
    else:
        blocks = [np.array([len(text.split()) for text in row])]
    boundaries = np.cumsum([len(part) for part in parts])[:-1]
    lengths = []
    for record, sizes in zip(table.records, np.split(np.concatenate(blocks), boundaries), strict=True):
        if isinstance(record, Choice):
            lengths.append(sizes[0] + sizes[1:].max() + 3)
        else:  # similarity encodes each text by itself, the other tasks join them
            lengths.append(sizes.max() + 2 if table.task == "similarity" else sizes.sum() + len(sizes) + 1)
    return np.array(lengths)


def _labels(record: AnyRecord) -> tuple[str | float, ...]:
    if isinstance(record, Question):
        return ("unanswerable" if record.impossible else "answerable" if record.answers else "unlabelled",)
    label = record.labels if isinstance(record, Words) else record.label
    if isinstance(label, tuple):
        return label or ("no class",)
    return ("unlabelled",) if label is None else (label if isinstance(label, float) else str(label),)


def _key(record: AnyRecord) -> bytes:
    same = " ".join("\0".join(texts(record)).casefold().split())
    return hashlib.blake2b(same.encode(), digest_size=16).digest()


def _places(pairs: Iterable[tuple[AnyRecord, AnyRecord]]) -> list[str]:
    return [f"{a.place} {a.id}".rstrip() + " = " + f"{b.place} {b.id}".rstrip() for a, b in list(pairs)[:SHOWN]]


def _spell(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure:,.4g}" for name, figure in figures.items())
