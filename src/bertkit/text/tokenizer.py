"""Tokenizers of the BERT family: strings in, ids with their offsets in the string out.

The `tokenizers` library does the work; this file adds what a BERT needs around it: special pieces, pairs, truncation, and
the folder that other tools read. A special piece spelled out in a text ("[SEP]") is encoded as text. Only the mask is read
from the text, and only if the caller asks for it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from bertkit.atomic import new_folder, read_json
from bertkit.errors import ArtifactError, InputError
from bertkit.text import kinds
from bertkit.text.sentencepiece import read_sentencepiece

SPECIALS = tuple(names[0] for names in kinds.SPELLINGS.values())  # BERT's own
FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model")
NORMALIZER = dict(lowercase="do_lower_case", strip_accents="strip_accents", handle_chinese_chars="tokenize_chinese_chars")
ALIKE = re.compile("(Bert|DistilBert|Electra|Roberta|Longformer|Albert|DebertaV2)Tokenizer(Fast)?")  # known classes
# Classes that use tokenizer.json unchanged; the families' own classes use its vocabulary with other components.
AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
WORD_MARKS = {"wordpiece": "##", "bpe": "Ġ", "unigram": "▁"}  # marks a piece that continues or begins a word

Texts = Sequence[str]


@dataclass(frozen=True)
class Pieces:
    """The pieces of one string, without special pieces."""

    ids: np.ndarray  # [T] int32
    offsets: np.ndarray  # [T, 2] int32: in characters of the original string; (0, 0) for special pieces
    starts: np.ndarray  # [T] bool: the piece begins a word; False for special pieces

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.ids[part], self.offsets[part], self.starts[part])

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Encoding(Pieces):
    """A text, or a pair, as the model sees it: [CLS] A [SEP], or [CLS] A [SEP] B [SEP], or [CLS] A [SEP] [SEP] B [SEP]."""

    segments: np.ndarray  # [T] int8: 0 for [CLS] A [SEP], 1 for all after it
    dropped: int = 0  # pieces removed by truncation


class Tokenizer:
    """Converts text to ids and back. Created by `from_vocabulary` or `load`."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._settings = json.loads(backend.to_str())
        kinds.check(self._settings)
        backend.no_padding()
        backend.no_truncation()
        self.specials = kinds.complete(backend)  # role → spelling
        self.content = backend.to_str()  # of tokenizer.json: everything that determines the ids
        self.kind = self._settings["model"]["type"].lower()  # wordpiece, bpe or unigram
        self.between = backend.num_special_tokens_to_add(True) - 2  # separators between the parts of a pair
        self.tells_segments = backend.encode("", "").type_ids[-1] > 0  # to other readers; RoBERTa's kind does not
        ids = backend.get_vocab()
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[name] for name in self.specials.values())
        if self.kind == "unigram":
            kinds.guard(backend, list(self.specials.values()))
        backend.encode_special_tokens = True  # a special piece spelled out in a text stays text
        self._backend = backend

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilds the tokenizer in another process: the library's own pickling loses `encode_special_tokens`."""
        return _from_content, (self.content,)

    @classmethod
    def from_vocabulary(
        cls, vocabulary: Sequence[str] | Mapping[str, int], *, cased: bool, max_word: int = kinds.MAX_WORD
    ) -> Tokenizer:
        """Returns a WordPiece tokenizer over the given pieces, a list in order of ids or a mapping to ids."""
        if not isinstance(vocabulary, Mapping):
            vocabulary = {piece: index for index, piece in enumerate(vocabulary)}
        return cls(kinds.wordpiece(dict(vocabulary), lowercase=not cased, max_word=max_word))

    @classmethod
    def load(cls, path: Path | str, *, cased: bool | None = None) -> Tokenizer:
        """Reads a tokenizer.json, vocab.txt, vocab.json with its merges.txt, .model, or a folder that holds one of them.

        A bare vocabulary does not say whether it is cased; `cased` or a tokenizer_config.json beside it does. Without
        either, a vocab.txt counts as cased if any word has a capital letter, which lower-cased text could never match.
        """
        file = _tokenizer_file(Path(path))
        config = read_json(file.with_name("tokenizer_config.json"), ArtifactError)
        config |= {} if cased is None else {"do_lower_case": not cased}
        try:
            return cls(_read_backend(file, config))._agreeing(file, config)
        except ArtifactError as error:
            raise ArtifactError(f"{file}: {error}") from error
        except Exception as error:  # the library raises a bare Exception for any fault in a file
            advice = f"get it again, or use another of {', '.join(FILES)}"
            raise ArtifactError(f"{file}: not a tokenizer file ({error}); {advice}") from error

    def _agreeing(self, file: Path, config: dict[str, Any]) -> Tokenizer:
        """Returns the tokenizer; raises ArtifactError if the files beside it, which other readers use, contradict it."""
        kind, steps = config.get("tokenizer_class") or "BertTokenizer", self._settings["normalizer"]
        theirs = [token["content"] for token in (config.get("added_tokens_decoder") or {}).values()]
        theirs += read_json(file.with_name("added_tokens.json"), ArtifactError)
        wrong = [f"the added {piece!r}" for piece in theirs if self._backend.token_to_id(piece) is None]
        if self.kind == "wordpiece" and kind not in AS_IT_IS:
            here = {NORMALIZER[ours]: steps["lowercase"] if steps[ours] is None else steps[ours] for ours in NORMALIZER}
            wrong += [f"{name} {config[name]}" for name, found in here.items() if config.get(name) not in (None, found)]
        if file.name != FILES[0] and kind not in AS_IT_IS and not ALIKE.fullmatch(kind):
            wrong.append(f"the tokenizer_class {kind}")
        if wrong:
            raise ArtifactError(f"it does not go with {', '.join(wrong)} of the files beside it; expected files that agree")
        return self

    def save(self, folder: Path | str) -> None:
        """Writes a folder from which `load` and transformers' AutoTokenizer get the same ids."""
        if any(file.name == "config.json" or file.suffix in (".safetensors", ".bin") for file in Path(folder).glob("*")):
            raise ArtifactError(f"{folder} holds a model, which the tokenizer would replace; give another place")
        with new_folder(folder, marker="tokenizer.json") as aside:
            self.write_files(aside)

    def write_files(self, folder: Path, *, max_length: int | None = None, segments: int | None = None) -> None:
        """Writes tokenizer.json and tokenizer_config.json, and vocab.txt for WordPiece, into an existing folder; `segments`
        is the number of segments of the model beside them."""
        tells = self.tells_segments if segments is None else segments > 1
        content = self._telling() if tells > self.tells_segments else self.content
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
        config: dict[str, Any] = {f"{role}_token": name for role, name in self.specials.items()}
        config["tokenizer_class"] = "BertTokenizer" if self.max_word == kinds.MAX_WORD else AS_IT_IS[0]
        if self.kind == "wordpiece":
            pieces = "".join(f"{piece}\n" for piece in self.vocabulary)
            (folder / "vocab.txt").write_text(pieces, encoding="utf-8", newline="\n")
            config |= {theirs: self._settings["normalizer"][ours] for ours, theirs in NORMALIZER.items()}
        config["model_input_names"] = ["input_ids", *["token_type_ids"] * tells, "attention_mask"]
        if max_length:
            config["model_max_length"] = max_length
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _telling(self) -> str:
        """Returns the content with the second part of a pair in the second segment."""
        backend = tokenizers.Tokenizer.from_str(self.content)
        kinds.frame(backend, self.specials, self.between, second=1)
        return backend.to_str()

    @property
    def cased(self) -> bool:
        normalizer = json.dumps(self._settings["normalizer"])
        return '"lowercase": true' not in normalizer and '"Lowercase"' not in normalizer

    @property
    def max_word(self) -> int | None:
        """Characters beyond which a word becomes [UNK]; None where length does not matter."""
        return self._settings["model"].get("max_input_chars_per_word")

    @cached_property
    def vocabulary(self) -> list[str]:
        """The pieces in order of their ids."""
        pieces = {index: piece for piece, index in self._backend.get_vocab(with_added_tokens=True).items()}
        return [pieces.get(index, f"[unused-{index}]") for index in range(max(pieces) + 1)]

    @cached_property
    def begins_word(self) -> np.ndarray:
        """[pieces] bool: whether a piece begins a word, judging by its mark alone."""
        marked = [piece.startswith(WORD_MARKS[self.kind]) for piece in self.vocabulary]
        return np.array(marked) != (self.kind == "wordpiece")

    @cached_property
    def texts(self) -> list[str]:
        """The pieces as readable text, with a leading space if they begin a word."""
        plain = self._backend.decode_batch([[index] for index in range(len(self))], skip_special_tokens=False)
        mark, begins = WORD_MARKS[self.kind], self.begins_word.tolist()
        return [" " * begin + text.strip().removeprefix(mark) for text, begin in zip(plain, begins, strict=True)]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def pieces(self, texts: Texts, *, read_mask: bool = False) -> list[Pieces]:
        """Returns each text's pieces, without special ones; `read_mask` reads "[MASK]" or the mask's own spelling as it."""
        backend = self._mask_reader if read_mask else self._backend
        with checked(texts):
            if read_mask:  # both spellings have the same length, so offsets stay right
                texts = [text.replace("[MASK]", self.specials["mask"]) for text in texts]
            encodings = backend.encode_batch(list(texts), add_special_tokens=False)
        found = [_pieces(encoding) for encoding in encodings]
        return found if self.kind == "wordpiece" else list(map(_without_space, found, texts))

    def words(self, words: Sequence[str]) -> list[Pieces]:
        """Returns the pieces of words inside a sentence; byte-level pieces include the space before a word."""
        return self.pieces([f" {word}" for word in words] if self.kind == "bpe" else words)

    def ids(self, texts: Texts) -> list[list[int]]:
        """Returns only the ids of `pieces`, faster."""
        with checked(texts):
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def ids_and_places(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a long text and the character offset at which each begins, for the corpus encoder."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array([begin for begin, _ in encoding.offsets], np.int64)

    def encode(self, text: str, pair: str | None = None, *, max_length: int | None = None) -> Encoding:
        """Encodes one text, or a pair, as the model sees it."""
        return self.encode_batch([text], None if pair is None else [pair], max_length=max_length)[0]

    def encode_batch(
        self, texts: Texts, pairs: Texts | None = None, *, max_length: int | None = None, read_mask: bool = False
    ) -> list[Encoding]:
        """Encodes texts, or pairs, as the model sees them, truncated to `max_length` pieces if given."""
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"{len(texts)} texts cannot pair with {len(pairs)}; give one partner to each")
        first = self.pieces(texts, read_mask=read_mask)
        second = [None] * len(first) if pairs is None else self.pieces(pairs, read_mask=read_mask)
        return [self.join(a, b, max_length=max_length) for a, b in zip(first, second, strict=True)]

    def join(self, a: Pieces, b: Pieces | None = None, *, max_length: int | None = None) -> Encoding:
        """Returns [CLS] A [SEP], followed for a pair by B [SEP] or [SEP] B [SEP], truncated longest first."""
        specials = 2 if b is None else 2 + self.between
        full = len(a) + (0 if b is None else len(b))
        if max_length is not None:
            if max_length < specials:
                raise InputError(f"a maximum length of {max_length} leaves no room beside {specials} special pieces")
            keep_a, keep_b = longest_first(len(a), 0 if b is None else len(b), max_length - specials)
            a, b = a[:keep_a], None if b is None else b[:keep_b]
        cls, sep = _special(self.cls), _special(self.sep)
        first, second = [cls, a, sep], [] if b is None else [sep] * (self.between - 1) + [b, sep]
        names, sizes = ("ids", "offsets", "starts"), [sum(map(len, first)), sum(map(len, second))]
        ids, offsets, starts = (np.concatenate([getattr(part, name) for part in first + second]) for name in names)
        segments = np.repeat(np.arange(2, dtype=np.int8), sizes)
        return Encoding(ids, offsets, starts, segments, dropped=full + specials - sum(sizes))

    def decode(self, ids: Sequence[int] | np.ndarray, *, skip_specials: bool = True) -> str:
        """Converts ids to text, without what the normalizer removed (case, accents, spacing)."""
        ids = [int(index) for index in ids]
        if bad := next((index for index in ids if not 0 <= index < len(self)), None):
            raise InputError(f"id {bad} is outside the vocabulary of {len(self):,} pieces")
        return self._backend.decode(ids, skip_special_tokens=skip_specials)

    @cached_property
    def _mask_reader(self) -> tokenizers.Tokenizer:
        """A copy in which the mask is an ordinary added word instead of a special piece, so that it is read from text."""
        settings = json.loads(self._backend.to_str())
        for token in settings["added_tokens"]:
            if token["content"] == self.specials["mask"]:
                token |= {"special": False, "normalized": False}
        backend = tokenizers.Tokenizer.from_str(json.dumps(settings))
        backend.encode_special_tokens = True
        return backend


def _from_content(content: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(content))


def _special(index: int) -> Pieces:
    return Pieces(np.array([index], np.int32), np.zeros((1, 2), np.int32), np.zeros(1, bool))


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """Returns how much of two lengths to keep so that both fit: the longer is cut first, and keeps the odd piece."""
    half = room - room // 2 if a > b else room // 2
    keep_a = min(a, max(room - b, half))
    return keep_a, min(b, room - keep_a)


def read_vocabulary(file: Path) -> dict[str, int]:
    """Reads a vocab.txt: one piece per line; its id is the line number from 0."""
    with open(file, encoding="utf-8") as lines:
        return {line.removesuffix("\n"): index for index, line in enumerate(lines)}


def _pieces(encoding: tokenizers.Encoding) -> Pieces:
    words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int32)
    ids, offsets = np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return Pieces(ids, offsets, starts=np.diff(words, prepend=np.int32(-2)) != 0)


def _without_space(pieces: Pieces, text: str) -> Pieces:
    """Trims white space from the offsets; those of a piece of white space alone become empty, at its word's edge."""
    solid = np.flatnonzero([not character.isspace() for character in text])
    begins, ends = pieces.offsets.T
    place = np.searchsorted(solid, begins)
    behind, ahead = np.append(-1, solid)[place] + 1, np.append(solid, len(text))[place]
    blank, words = ahead >= ends, np.cumsum(pieces.starts)
    starts = pieces.starts & (np.bincount(words, weights=~blank)[words] > 0)
    begins = np.where(blank & ~starts, behind, ahead)
    offsets = np.stack([begins, np.where(blank, begins, ends)], axis=1)
    return Pieces(pieces.ids, offsets.astype(np.int32), starts)


def _tokenizer_file(path: Path) -> Path:
    for file in (path, *(path / name for name in FILES)):
        if file.is_file():
            return file
    raise ArtifactError(f"{path}: no tokenizer here; expected {' or '.join(FILES)}")


def _read_backend(file: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    cased = None if config.get("do_lower_case") is None else not config["do_lower_case"]
    if file.name == "vocab.json":
        model = tokenizers.models.BPE.from_file(str(file), str(file.with_name("merges.txt")))
        return kinds.byte_bpe(model, blank=bool(config.get("add_prefix_space")))
    if file.suffix == ".json":
        return tokenizers.Tokenizer.from_file(str(file))
    if file.suffix == ".model":
        return _read_unigram(file, cased, bool(config.get("keep_accents")))
    vocabulary = read_vocabulary(file)
    if cased is None:
        cased = any(piece.isalpha() and piece != piece.lower() for piece in vocabulary)
    steps = {ours: config[theirs] for ours, theirs in NORMALIZER.items() if config.get(theirs) is not None}
    return kinds.wordpiece(vocabulary, **steps | {"lowercase": not cased})


def _read_unigram(file: Path, cased: bool | None, accents: bool) -> tokenizers.Tokenizer:
    """Reads ALBERT's or DeBERTa's model, told apart by the unknown piece; only ALBERT lower-cases by default."""
    pieces, unk, charsmap = read_sentencepiece(file)
    if pieces[unk][0] == "[UNK]":
        backend = kinds.deberta(tokenizers.models.Unigram(pieces, unk), cased=cased is not False)
    else:  # ALBERT never joins a digit and a comma, though its vocabulary has such pieces.
        pieces = [(piece, score - 100 * bool(re.search(r"\d,$", piece))) for piece, score in pieces]
        model = tokenizers.models.Unigram(pieces, unk)
        backend = kinds.albert(model, cased=bool(cased), accents=accents, charsmap=charsmap)
    # The library changes the last bit of scores the first time it reads them back; later copies are equal.
    return tokenizers.Tokenizer.from_str(backend.to_str())


def behind_marks(text: str, end: int) -> int:
    """Returns the end of a word including the marks on its last letter (accents, vowel signs), which pieces leave out."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


@contextmanager
def checked(texts: Sequence[object]) -> Iterator[None]:
    """Raises InputError that says what is wrong with texts that the library refuses."""
    if isinstance(texts, str):
        raise InputError("expected a list of texts, found one string; put it into a list")
    try:
        yield
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        found = (f"{type(text).__name__} at index {i}" for i, text in enumerate(texts) if not isinstance(text, str))
        raise InputError(f"expected texts as Unicode strings, found {next(found, 'half of a surrogate pair')}") from error
