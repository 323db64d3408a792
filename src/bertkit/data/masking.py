"""The cloze task: which pieces are masked, and what replaces them (section 3.1, appendix A.1).

All functions are pure and work on a row of T tokens of B examples; randomness comes only from the bits passed in, drawn for
each token. `choose` selects the tokens; `replace` makes each [MASK] or a random piece, or leaves it as it is.
"""

from dataclasses import dataclass

import numpy as np

from bertkit.data.draws import below, mix, uniform
from bertkit.errors import InputError, check_choice

SCHEMES = ("piece", "whole-word", "span")
MAX_SPAN, SPAN_STOP = 10, 0.2  # words; SpanBERT's geometric distribution


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How much is masked, in which units, and what replaces it."""

    scheme: str = "piece"
    rate: float = 0.15
    mask: float = 0.8  # share of chosen tokens that become [MASK]
    random: float = 0.1  # share that become a random piece; the rest stays as it is

    def __post_init__(self) -> None:
        check_choice("masking scheme", self.scheme, SCHEMES)
        if not 0 < self.rate < 1 or min(self.mask, self.random) < 0 or self.mask + self.random > 1:
            raise InputError(f"masking rate {self.rate}, mask {self.mask}, random {self.random} are not shares of a whole")


@dataclass(frozen=True)
class Row:
    """The tokens of several examples, one after the other."""

    ids: np.ndarray  # [T]
    owners: np.ndarray  # [T] the index of each token's example: 0, 0, …, 1, 1, …
    positions: np.ndarray  # [T] 0, 1, 2, … within each example
    special: np.ndarray  # [T] [CLS] and [SEP]: never masked
    starts: np.ndarray  # [T] the token begins a word
    sizes: np.ndarray  # [B] tokens of each example


def choose(row: Row, masking: Masking, bits: np.ndarray) -> np.ndarray:
    """Returns [T] which tokens to mask: the rate's share of each example's tokens, at least one."""
    quota = np.maximum(1, np.rint(masking.rate * row.sizes)).astype(np.int64)
    if masking.scheme == "piece":
        return _choose_pieces(row, quota, bits)
    words = _words(row)
    units = _spans(words, bits) if masking.scheme == "span" else words
    return _choose_units(row, units, np.append(0, words.ends), quota, bits)


def replace(row: Row, chosen: np.ndarray, masking: Masking, bits: np.ndarray, mask: int, pieces: np.ndarray) -> np.ndarray:
    """Returns the ids [T] with the chosen ones replaced; random ones are from `pieces`. Pass other bits than to `choose`."""
    fate = uniform(bits)
    if masking.scheme == "span":  # all tokens of a masked run share its first one's fate
        begins = chosen & ~np.append(False, chosen[:-1])
        fate = fate[np.maximum.accumulate(np.where(begins, np.arange(len(fate)), 0))]
    fresh = pieces[below(_other(bits), len(pieces))]
    ids = np.where(chosen & (fate < masking.mask), mask, row.ids)
    return np.where(chosen & (fate >= masking.mask) & (fate < masking.mask + masking.random), fresh, ids)


@dataclass(frozen=True)
class _Units:
    """Ranges of tokens that are masked together, in order of their examples."""

    begins: np.ndarray
    ends: np.ndarray
    owners: np.ndarray


def _choose_pieces(row: Row, quota: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Chooses the tokens of each example with the lowest random bits, special ones last."""
    order, chosen = _sort(row.owners, bits, row.special), np.zeros(len(row.ids), bool)
    chosen[order] = row.positions < quota[row.owners]  # sorted within each example, so positions are ranks
    return chosen & ~row.special


def _words(row: Row) -> _Units:
    """Returns the words: a starting piece and the continuations after it."""
    begins = np.flatnonzero(row.starts & ~row.special)
    ends_of_runs = np.flatnonzero(row.starts | row.special)
    following = np.searchsorted(ends_of_runs, begins, side="right")
    ends = np.append(ends_of_runs, len(row.ids))[following]
    return _Units(begins, ends, row.owners[begins])


def _spans(words: _Units, bits: np.ndarray) -> _Units:
    """Returns a span from each word on: of geometric length, at most MAX_SPAN words, never beyond a [SEP]."""
    chances = (1 - SPAN_STOP) ** np.arange(MAX_SPAN) * SPAN_STOP
    steps = np.cumsum(chances / chances.sum())
    count = np.searchsorted(steps[:-1], uniform(_other(bits[words.begins])), side="right")
    breaks = np.flatnonzero(np.append(words.begins[1:] != words.ends[:-1], True))  # words that no other word follows
    first = np.arange(len(count))
    last = np.minimum(first + count, breaks[np.searchsorted(breaks, first)])
    return _Units(words.begins, words.ends[last], words.owners)


def _choose_units(row: Row, units: _Units, word_ends: np.ndarray, quota: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Takes units in random order, one per example at a time; of a unit that would exceed the quota, the words that fit."""
    order = _sort(units.owners, bits[units.begins], np.zeros(len(units.begins), bool))
    counts = np.bincount(units.owners, minlength=len(row.sizes))
    first, left, chosen = np.cumsum(counts) - counts, quota.copy(), np.zeros(len(row.ids), bool)
    for turn in range(int(counts.max(initial=0))):
        active = np.flatnonzero((counts > turn) & (left > 0))
        if not len(active):
            break
        taken = order[first[active] + turn]
        begins = units.begins[taken]
        fitting = np.searchsorted(word_ends, begins + left[active], side="right") - 1
        ends = np.minimum(units.ends[taken], word_ends[fitting])
        places = _ranges(begins[ends > begins], ends[ends > begins])
        fresh = places[~chosen[places]]
        chosen[fresh] = True
        left -= np.bincount(row.owners[fresh], minlength=len(row.sizes))
    return chosen


def _sort(owners: np.ndarray, bits: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Returns the indices sorted by owner, then by `last`, then by random bits."""
    key = owners.astype(np.uint64) << np.uint64(40) | last.astype(np.uint64) << np.uint64(39) | bits >> np.uint64(25)
    return np.argsort(key, kind="stable")


def _ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the indices of all ranges, concatenated."""
    sizes = ends - begins
    return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def _other(bits: np.ndarray) -> np.ndarray:
    """Derives second random bits from the same bits, in practice independent of `uniform`'s."""
    return mix(bits + np.uint64(0xD1B54A32D192ED03))
