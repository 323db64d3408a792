"""Learns a WordPiece vocabulary from raw text, in one pass over the corpus and in bounded memory.

1. Count: white-space-separated chunks are counted as the corpus streams by. When the table is full its rarer half is
   dropped, so a word that returns starts again from zero: its count is low by at most `Counts.shortfall`, a number that
   stays small because only rare words are ever dropped. The memory needed does not grow with the corpus.
2. Split: each distinct chunk is normalised and split into words once. Words over the longest length are left out.
3. Learn: the library's WordPiece trainer merges pieces by frequency over the most frequent words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertkit.errors import InputError
from bertkit.progress import bar, spinner
from bertkit.text.corpus import Corpus
from bertkit.text.tokenizer import MAX_WORD, SPECIALS, Tokenizer

MAX_CHUNKS = 1_500_000  # distinct chunks counted at once: about 300 MB
MAX_WORDS = 400_000  # distinct words that the trainer sees: about 400 MB
MAX_TOTAL = 400_000_000  # words that the trainer counts; larger corpora are scaled down to it
ALPHABET = 1000  # distinct characters kept; rarer ones are spelled [UNK]


@dataclass
class Counts:
    """How often each chunk was seen, in a table that never holds more than about `limit`."""

    limit: int = MAX_CHUNKS
    table: Counter[str] = field(default_factory=Counter)
    pruned: int = 0  # chunks dropped
    shortfall: int = 0  # by how much a count can be too low at most

    def add(self, text: str) -> None:
        self.table.update(text.split())
        if len(self.table) > self.limit:
            self._prune()

    def _prune(self) -> None:
        """Drops the rarer half; among equals the older."""
        counts = np.fromiter(self.table.values(), np.int64, len(self.table))
        keep = np.ones(len(counts), bool)
        keep[np.argsort(counts, kind="stable")[: len(counts) // 2]] = False
        self.shortfall += int(counts[~keep].max())
        self.pruned += len(counts) // 2
        self.table = Counter({chunk: n for (chunk, n), kept in zip(self.table.items(), keep, strict=True) if kept})


@dataclass(frozen=True)
class Learned:
    """A new tokenizer, and what happened on the way to it."""

    tokenizer: Tokenizer
    documents: int
    words: int  # distinct words that were learned from
    pruned: int  # distinct chunks dropped while counting
    shortfall: int  # by how much a count can be too low at most
    too_long: int  # distinct words left out for their length
    skipped: int  # unusable lines


def learn_vocabulary(
    corpus: Corpus,
    size: int,
    *,
    cased: bool = False,
    max_chunks: int = MAX_CHUNKS,
    max_words: int = MAX_WORDS,
    alphabet: int = ALPHABET,
) -> Learned:
    """Learns `size` pieces from the corpus; the same corpus gives the same vocabulary."""
    counts, documents = _count(corpus, max_chunks)
    words, too_long = _split(counts.table, cased)
    if not words:
        raise InputError(f"the corpus holds no words (in {documents:,} documents); give it some text")
    words = Counter(dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:max_words]))
    counts.table.clear()
    with spinner(f"learning {size:,} pieces from {len(words):,} distinct words"):
        pieces = _learn(words, size, alphabet)
    tokenizer = Tokenizer.from_vocabulary(pieces, cased=cased)
    return Learned(tokenizer, documents, len(words), counts.pruned, counts.shortfall, too_long, corpus.skipped)


def _count(corpus: Corpus, max_chunks: int) -> tuple[Counts, int]:
    counts, documents = Counts(max_chunks), 0
    with bar("counting words", corpus.size, "bytes") as done:
        for document in corpus:
            counts.add(document.text)
            documents += 1
            done(corpus.position)
    return counts, documents


def _split(chunks: Counter[str], cased: bool) -> tuple[Counter[str], int]:
    """Words as the tokenizer will see them, with their counts, and how many were too long."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=not cased), pre_tokenizers.BertPreTokenizer()
    words, too_long = Counter[str](), set[str]()
    with bar("splitting words", len(chunks)) as done:
        for index, (chunk, count) in enumerate(chunks.items()):
            for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(chunk)):
                if len(word) <= MAX_WORD:
                    words[word] += count
                else:
                    too_long.add(word)
            if index % 10_000 == 0:
                done(index)
        done(len(chunks))
    return words, len(too_long)


def _learn(words: Counter[str], size: int, alphabet: int) -> list[str]:
    """The pieces in order of their ids: special ones, single characters, then merges as they were learned."""
    letters = _letters(words, alphabet)
    words = Counter({word: count for word, count in words.items() if letters.issuperset(word)})
    inner = {letter for word in words for letter in word[1:]}
    # Given here, single characters get their ids in a fixed order; the trainer would number them in a random one.
    fixed = [*SPECIALS, *sorted(letters), *(f"##{letter}" for letter in sorted(inner))]
    if size < len(fixed):
        raise InputError(f"{size} pieces leave no room beside {len(fixed)} special pieces and characters; ask for more")
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(
        _repeated(words), trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    )
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _letters(words: Counter[str], alphabet: int) -> set[str]:
    """The most frequent characters; among equals the first in Unicode."""
    counts = Counter[str]()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    return set(sorted(counts, key=lambda letter: (-counts[letter], letter))[:alphabet])


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted: the trainer takes text, not counts."""
    scale = max(1.0, words.total() / MAX_TOTAL)
    for word, count in words.items():
        left = max(1, round(count / scale))
        while left > 0:
            yield f"{word} " * min(left, 10_000)
            left -= 10_000
