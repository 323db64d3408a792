"""Learns a vocabulary from raw text in one pass over the corpus and in bounded memory.

1. Count the chunks between white space, for WordPiece each ideograph by itself, while the corpus streams by. When the table
   is full, its rarer half is dropped, and a chunk that comes back starts from zero: its count is low by at most
   `Counts.shortfall`, which stays small because only rare chunks are dropped. Memory does not grow with the corpus.
2. Split: normalize each distinct chunk and split it into words, once. Words over the maximum length are left out.
3. Learn: the library's trainer makes pieces from the most frequent words: WordPiece and BPE merge, Unigram prunes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from bertkit.errors import InputError, check_choice
from bertkit.progress import bar
from bertkit.text import kinds
from bertkit.text.corpus import Corpus
from bertkit.text.tokenizer import SPECIALS, Tokenizer

MAX_CHUNKS = 1_500_000  # distinct chunks counted at once: about 300 MB
MAX_WORDS = 400_000  # distinct words that the trainer sees: about 400 MB
MAX_TOTAL = 400_000_000  # words fed to the trainer; counts of a larger corpus are scaled down to this
MOST = 5_000_000  # pieces
ALPHABET = 1000  # distinct characters kept; rarer ones are spelled [UNK]
OFTEN = 1_000_000  # a character seen more than once per this many is kept too, up to a third of the pieces
IDEOGRAPHS = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df])")
KINDS = {  # each with the special pieces of its best-known model
    "wordpiece": SPECIALS,
    "bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
}


@dataclass
class Counts:
    """Counts of chunks, in a table of at most about `limit` of them."""

    limit: int
    table: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    pruned: int = 0  # chunks dropped
    shortfall: int = 0  # the most by which a count can be too low

    def add(self, text: str) -> None:
        self.documents += 1
        self.table.update(text.split())
        if len(self.table) > self.limit:
            self._prune()

    def _prune(self) -> None:
        """Drops the rarer half; of equal counts, the older."""
        counts = np.fromiter(self.table.values(), np.int64, len(self.table))
        keep = np.ones(len(counts), bool)
        keep[np.argsort(counts, kind="stable")[: len(counts) // 2]] = False
        self.shortfall += int(counts[~keep].max())
        self.pruned += len(counts) // 2
        self.table = Counter({chunk: n for (chunk, n), kept in zip(self.table.items(), keep, strict=True) if kept})


@dataclass(frozen=True)
class Learned:
    """A new tokenizer, and figures about its training."""

    tokenizer: Tokenizer
    documents: int
    words: int  # distinct words given to the trainer
    pruned: int  # distinct chunks dropped while counting
    shortfall: int  # the most by which a count can be too low
    too_long: int  # distinct words left out for their length
    skipped: int  # unusable lines


def learn_vocabulary(corpus: Corpus, size: int, *, kind: str = "wordpiece", cased: bool = False) -> Learned:
    """Learns `size` pieces from the corpus; the same corpus gives the same vocabulary."""
    check_choice("kind", kind, KINDS)
    if size > MOST:
        raise InputError(f"{size} pieces; expected {MOST:,} at most")
    backend = _untaught(kind, cased)
    counts = Counts(MAX_CHUNKS)
    for document in corpus.watched("counting words"):
        counts.add(" ".join(IDEOGRAPHS.split(document.text)) if kind == "wordpiece" else document.text)
    words, too_long = _split(counts.table, backend)
    if not words:
        raise InputError(f"the corpus holds no words (in {counts.documents:,} documents); give it some text")
    words = Counter(dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS]))
    counts.table.clear()
    with bar(f"learning {size:,} pieces from {len(words):,} distinct words"):
        backend.model = _learn(kind, backend.model, words, size)
    lost = counts.pruned, counts.shortfall, too_long, corpus.skipped
    return Learned(Tokenizer(backend), counts.documents, len(words), *lost)


def _untaught(kind: str, cased: bool) -> Backend:
    if kind == "bpe":
        return kinds.byte_bpe(models.BPE())
    if kind == "unigram":
        return kinds.albert(models.Unigram(), cased=cased, accents=cased)
    return kinds.wordpiece({}, lowercase=not cased)


def _split(chunks: Counter[str], backend: Backend) -> tuple[Counter[str], int]:
    """Returns the words, each with white space before it, as the tokenizer splits them, with their counts; and how many were
    too long for WordPiece. Other kinds get long words in parts."""
    whole = isinstance(backend.model, models.WordPiece)
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    words, too_long = Counter[str](), set[str]()
    with bar("splitting words", len(chunks)) as done:
        for index, (chunk, count) in enumerate(chunks.items()):
            for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalize(f" {chunk}")):
                if len(word) > kinds.MAX_WORD and whole:
                    too_long.add(word)
                    continue
                for begin in range(0, len(word), kinds.MAX_WORD):
                    words[word[begin : begin + kinds.MAX_WORD]] += count
            if index % 10_000 == 0:
                done(index)
        done(len(chunks))
    return words, len(too_long)


def _learn(kind: str, model: models.Model, words: Counter[str], size: int) -> models.Model:
    """Fills the model with pieces: special pieces, single characters, then learned pieces in order."""
    letters = _letters(words, size // 3)
    words = Counter({word: count for word, count in words.items() if letters.issuperset(word)})
    fixed = [*KINDS[kind], *_single(kind, letters, words)]
    if size < len(fixed):
        raise InputError(f"{size} pieces leave no room beside {len(fixed)} special pieces and characters; ask for more")
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeated(words), _trainer(kind, size, fixed))
    return _in_order(backend.model) if kind == "unigram" else backend.model


def _single(kind: str, letters: set[str], words: Counter[str]) -> list[str]:
    """Returns the pieces of one character."""
    if kind == "wordpiece":
        return sorted(letters) + sorted({f"##{letter}" for word in words for letter in word[1:]})
    return sorted(pre_tokenizers.ByteLevel.alphabet() if kind == "bpe" else letters)


def _trainer(kind: str, size: int, fixed: list[str]) -> trainers.Trainer:
    if kind == "unigram":
        special = list(KINDS[kind])
        return trainers.UnigramTrainer(vocab_size=size, show_progress=False, special_tokens=special, unk_token="<unk>")
    # Passing single characters fixes the order of their ids; the trainer would number them in random order.
    trainer = trainers.BpeTrainer if kind == "bpe" else trainers.WordPieceTrainer
    return trainer(vocab_size=size, show_progress=False, special_tokens=fixed)


def _in_order(model: models.Unigram) -> models.Unigram:
    """Rounds the scores and sorts the pieces, as the library sums scores in random order.

    Characters that it would have pruned get scores just above the lowest, each a step higher; here they share the lowest.
    """
    learned = json.loads(Backend(model).to_str())["model"]["vocab"]
    pieces, special = learned[len(KINDS["unigram"]) :], learned[: len(KINDS["unigram"])]
    lowest = min(score for _, score in pieces)
    rare = {piece for piece, score in pieces if len(piece) == 1 and score < lowest + 0.1}
    pieces = [(piece, round(lowest if piece in rare else score, 4)) for piece, score in pieces]
    pieces.sort(key=lambda one: (-one[1], one[0]))
    return models.Unigram([*map(tuple, special), *pieces], special.index(["<unk>", 0.0]))


def _letters(words: Counter[str], most: int) -> set[str]:
    """Returns the most frequent characters; of equal counts, the first in Unicode."""
    counts = Counter[str]()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    rare = counts.total() / OFTEN
    kept = max(ALPHABET, min(most, sum(count > rare for count in counts.values())))
    return set(sorted(counts, key=lambda letter: (-counts[letter], letter))[:kept])


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Yields each word as often as it was counted, since the trainer takes text, not counts."""
    scale = max(1.0, words.total() / MAX_TOTAL)
    for word, count in words.items():
        for left in range(max(1, round(count / scale)), 0, -10_000):
            yield f"{word} " * min(left, 10_000)
