"""Chooses the spans of text in an example: two consecutive ones, two unrelated ones, or one (section 3.1, appendix A.2).

A chunk of whole sentences fills the target length. For a pair it is split before a random sentence: the first part is A, and
B is the rest or, half of the time, as much text from another document; then the rest goes into the next chunk. One chunk in
ten aims at a random shorter length, so that the model sees short inputs too. If an example is still too long, tokens are
removed one by one from its longer span, at the front or back at random.

All randomness of a chunk is a function of the sentence that begins it. So the chunks of all possible beginnings are laid out
at once, in numpy, and each document's chain of chunks is then followed from its first sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from bertkit.data.draws import below, draw, fair_coins, uniform
from bertkit.data.store import Store
from bertkit.errors import check_choice

KINDS = ("next", "order", "none")
_BLOCK = 2**18  # sentences laid out at a time
_WORDS = 4  # of 64 coin tosses each, for the tokens that are cut from a span


@dataclass(frozen=True)
class Spans:
    """The spans of many examples: where A and B begin in the store, and their sizes in tokens."""

    a_begin: np.ndarray
    a_size: np.ndarray
    b_begin: np.ndarray
    b_size: np.ndarray  # 0 for examples of one span
    label: np.ndarray  # 0: B follows A; 1: it does not, or A and B are swapped

    def __len__(self) -> int:
        return len(self.a_begin)

    def __getitem__(self, chosen: np.ndarray | slice) -> Spans:
        return Spans(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each example, including special pieces."""
        return self.a_size + self.b_size + np.where(self.b_size > 0, 3, 2)


@dataclass(frozen=True)
class _Chunks:
    """For each sentence of a block, the chunk that would begin with it; bounds are indices of sentences."""

    first: np.ndarray
    split: np.ndarray  # where B would begin
    end: np.ndarray
    room: np.ndarray  # the target length in tokens
    away: np.ndarray  # whether B comes from elsewhere or, for order, is swapped with A
    following: np.ndarray  # the sentence that begins the next chunk


def plan_spans(store: Store, *, kind: str, length: int, short: float, seed: int, epoch: int) -> Spans:
    """Returns all examples of an epoch, document by document."""
    check_choice("pairs", kind, KINDS)
    documents = store.document_bounds
    parts = []
    for first, last in _blocks(documents):
        bounds = documents[first : last + 1]
        chunks = _lay_out(store, bounds, kind, length, short, seed, epoch)
        chosen = _follow(chunks.following - bounds[0], bounds - bounds[0])
        parts.append(_spans(store, chunks, chosen, kind, length, seed, epoch))
    return Spans(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Spans)))


def _blocks(documents: np.ndarray) -> list[tuple[int, int]]:
    """Returns ranges of documents with about _BLOCK sentences each."""
    cuts = np.unique(np.searchsorted(documents, np.arange(0, documents[-1] + _BLOCK, _BLOCK)).clip(max=len(documents) - 1))
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def _lay_out(store: Store, bounds: np.ndarray, kind: str, length: int, short: float, seed: int, epoch: int) -> _Chunks:
    first = np.arange(bounds[0], bounds[-1])
    bits = draw(seed, 1, epoch, first[:, None], np.arange(4))
    most = length - (2 if kind == "none" else 3)
    room = np.where(uniform(bits[:, 0]) < short, 2 + below(bits[:, 1], most - 1), most)
    document_end = np.repeat(bounds[1:], np.diff(bounds))
    places = store.sentence_bounds
    if kind == "none":  # as many whole sentences as fit; a longer one stands alone and is cut
        full = np.searchsorted(places, places[first] + room, side="right") - 1
    else:  # the first sentence boundary at which the room is filled
        full = np.searchsorted(places, places[first] + room, side="left")
    end = np.minimum(np.maximum(full, first + 1), document_end)
    split = np.where(end - first > 1, first + 1 + below(bits[:, 2], end - first - 1), end)
    away = uniform(bits[:, 3]) < 0.5
    if kind == "next":
        away |= split == end  # a chunk of one sentence has no rest for B
        return _Chunks(first, split, end, room, away, np.where(away, split, end))
    if kind == "none":
        return _Chunks(first, end, end, room, np.zeros_like(away), end)
    return _Chunks(first, split, end, room, away, end)


def _follow(following: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Returns the sentences that begin chunks, from each document's first on."""
    chosen, step = [], following.tolist()
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        while begin < end:
            chosen.append(begin)
            begin = step[begin]
    return np.array(chosen, np.int64)


def _spans(store: Store, chunks: _Chunks, chosen: np.ndarray, kind: str, length: int, seed: int, epoch: int) -> Spans:
    """Returns the spans of the chosen chunks' A and B."""
    places = store.sentence_bounds
    first, split, end = chunks.first[chosen], chunks.split[chosen], chunks.end[chosen]
    a = np.stack([places[first], places[split]])
    b = np.stack([places[split], places[end]])
    label = chunks.away[chosen].astype(np.int64)
    if kind == "next":
        b = np.where(label, _elsewhere(store, first, chunks.room[chosen] - (a[1] - a[0]), seed, epoch), b)
    if kind == "order":
        paired = b[1] > b[0]
        a, b, label, first = np.where(label, b, a)[:, paired], np.where(label, a, b)[:, paired], label[paired], first[paired]
    return _cut(a, b, label, length, draw(seed, 3, epoch, first[:, None], np.arange(2 * _WORDS)))


def _elsewhere(store: Store, first: np.ndarray, room: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Returns [2, n] begin and end of spans of about `room` tokens, from a random sentence of another document."""
    documents, places = store.document_bounds, store.sentence_bounds
    bits = draw(seed, 2, epoch, first[:, None], np.arange(2))
    other = below(bits[:, 0], max(1, store.documents - 1))
    own = np.searchsorted(documents, first, side="right") - 1
    other += (other >= own) & (store.documents > 1)
    begin = documents[other] + below(bits[:, 1], documents[other + 1] - documents[other])
    end = np.searchsorted(places, places[begin] + room, side="left").clip(begin + 1, documents[other + 1])
    return np.stack([places[begin], places[end]])


def _cut(a: np.ndarray, b: np.ndarray, label: np.ndarray, length: int, bits: np.ndarray) -> Spans:
    """Removes tokens from the longer span, each from its front or back at random, until both fit."""
    a_size, b_size = a[1] - a[0], b[1] - b[0]
    room = length - np.where(b_size > 0, 3, 2)
    keep_b = np.minimum(b_size, np.maximum(room - a_size, room // 2))
    keep_a = np.minimum(a_size, room - keep_b)
    a_begin = a[0] + fair_coins(bits[:, :_WORDS], a_size - keep_a)
    b_begin = b[0] + fair_coins(bits[:, _WORDS:], b_size - keep_b)
    return Spans(a_begin, keep_a, b_begin, keep_b, label)
