"""WordPiece as BERT was published with it: strings in, ids with their places in the string out.

The work is done by the `tokenizers` library; this file owns what a BERT needs around it: the special pieces, pairs,
truncation, and the folder that other tools read. A special piece spelled out in a text ("[SEP]") is text, never an
id; only [MASK], and only where the caller asks for it, is read from the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bertkit.atomic import new_folder
from bertkit.errors import ArtifactError, InputError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD = 100  # characters; a longer word becomes [UNK]
FILES = ("tokenizer.json", "vocab.txt")


@dataclass(frozen=True)
class Encoding:
    """A text, or a pair, as the model sees it: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

    ids: np.ndarray  # [T] int32
    segments: np.ndarray  # [T] int8: 0 for [CLS] A [SEP], 1 for B [SEP]
    offsets: np.ndarray  # [T, 2] int32: characters of the original string; (0, 0) for special pieces
    starts: np.ndarray  # [T] bool: the piece begins a word; False for special pieces
    dropped: int = 0  # pieces that truncation left out

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Pieces:
    """The pieces of one string, without special ones."""

    ids: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.ids[part], self.offsets[part], self.starts[part])

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Text to ids and back. Made by `from_vocabulary`, or read by `load`."""

    def __init__(self, backend: tokenizers.Tokenizer):
        settings = json.loads(backend.to_str())
        _check_settings(settings)
        self._settings = settings
        self._backend = backend
        self._backend.no_padding()
        self._backend.no_truncation()
        self._backend.encode_special_tokens = True  # a special piece spelled out in a text stays text
        self.pad, self.unk, self.cls, self.sep, self.mask = (self._special(name) for name in SPECIALS)

    @classmethod
    def from_vocabulary(
        cls, vocabulary: Sequence[str] | Mapping[str, int], *, cased: bool, max_word: int = MAX_WORD
    ) -> Tokenizer:
        """A tokenizer over the given pieces: in order of their ids, or mapped to them."""
        if not isinstance(vocabulary, Mapping):
            vocabulary = {piece: index for index, piece in enumerate(vocabulary)}
        _check_specials(vocabulary)
        model = models.WordPiece(dict(vocabulary), unk_token="[UNK]", max_input_chars_per_word=max_word)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizers.BertNormalizer(lowercase=not cased)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
        )
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
        return cls(backend)

    @classmethod
    def load(cls, path: Path | str, *, cased: bool | None = None) -> Tokenizer:
        """Reads `tokenizer.json`, `vocab.txt`, or a folder that holds one of them.

        A bare vocab.txt does not say whether it is cased: a tokenizer_config.json beside it does, or `cased`; failing
        both, it is cased if it has a word with a capital letter, which no lower-cased text could ever use.
        """
        file = _tokenizer_file(Path(path))
        if file.suffix == ".json":
            return cls(_read_backend(file))
        vocabulary = read_vocabulary(file)
        if cased is None:
            cased = _stated_casing(file.parent)
        if cased is None:
            cased = any(piece.isalpha() and piece != piece.lower() for piece in vocabulary)
        try:
            return cls.from_vocabulary(vocabulary, cased=cased)
        except ArtifactError as error:
            raise ArtifactError(f"{file}: {error}") from error

    def save(self, folder: Path | str) -> None:
        """Writes a folder that `load` and transformers' AutoTokenizer read to the same ids."""
        with new_folder(folder, marker="tokenizer.json") as aside:
            self.write_files(aside)

    def write_files(self, folder: Path, *, max_length: int | None = None) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json into an existing folder."""
        self._backend.save(str(folder / "tokenizer.json"))
        pieces = "".join(f"{piece}\n" for piece in self.vocabulary)
        (folder / "vocab.txt").write_text(pieces, encoding="utf-8", newline="\n")
        normalizer = self._settings["normalizer"]
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            **{f"{name[1:-1].lower()}_token": name for name in SPECIALS},
        }
        if max_length:
            config["model_max_length"] = max_length
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @property
    def cased(self) -> bool:
        return not self._settings["normalizer"]["lowercase"]

    @property
    def max_word(self) -> int:
        """Characters of the longest word that is not [UNK] for its length alone."""
        return self._settings["model"]["max_input_chars_per_word"]

    @cached_property
    def vocabulary(self) -> list[str]:
        """The pieces in order of their ids."""
        ids = self._backend.get_vocab(with_added_tokens=True)
        pieces = [f"[unused-{index}]" for index in range(max(ids.values()) + 1)]
        for piece, index in ids.items():
            pieces[index] = piece
        return pieces

    def __len__(self) -> int:
        return len(self.vocabulary)

    def pieces(self, texts: Sequence[str], *, read_mask: bool = False) -> list[Pieces]:
        """The pieces of each text, without special ones; `read_mask` reads "[MASK]" as the special piece."""
        backend = self._mask_reader if read_mask else self._backend
        try:
            encodings = backend.encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"expected texts as Unicode strings, found {_first_bad(texts)}") from error
        return [_pieces(encoding) for encoding in encodings]

    def ids_and_places(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """A long text's ids and the character at which each begins, no more: what the corpus encoder needs."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array([begin for begin, _ in encoding.offsets], np.int64)

    def encode(self, text: str, pair: str | None = None, *, max_length: int | None = None) -> Encoding:
        """One text, or a pair, as the model sees it."""
        return self.encode_batch([text], None if pair is None else [pair], max_length=max_length)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        read_mask: bool = False,
    ) -> list[Encoding]:
        """Many texts, or pairs, as the model sees them, each at most `max_length` pieces long if given."""
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"{len(texts)} texts cannot pair with {len(pairs)}; give one partner to each")
        first = self.pieces(texts, read_mask=read_mask)
        second = [None] * len(first) if pairs is None else self.pieces(pairs, read_mask=read_mask)
        return [self.join(a, b, max_length=max_length) for a, b in zip(first, second, strict=True)]

    def join(self, a: Pieces, b: Pieces | None = None, *, max_length: int | None = None) -> Encoding:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncated longest first to `max_length`."""
        specials = 2 if b is None else 3
        full = len(a) + (0 if b is None else len(b))
        if max_length is not None:
            if max_length < specials:
                raise InputError(f"a maximum length of {max_length} leaves no room beside {specials} special pieces")
            keep_a, keep_b = longest_first(len(a), 0 if b is None else len(b), max_length - specials)
            a, b = a[:keep_a], None if b is None else b[:keep_b]
        parts = [a] if b is None else [a, b]
        ids, offsets, starts = [np.array([self.cls], np.int32)], [_NOWHERE], [_NO_START]
        for part in parts:
            ids += [part.ids, np.array([self.sep], np.int32)]
            offsets += [part.offsets, _NOWHERE]
            starts += [part.starts, _NO_START]
        sizes = [len(a) + 2] if b is None else [len(a) + 2, len(b) + 1]
        return Encoding(
            ids=np.concatenate(ids),
            segments=np.repeat(np.arange(len(sizes), dtype=np.int8), sizes),
            offsets=np.concatenate(offsets),
            starts=np.concatenate(starts),
            dropped=full - sum(map(len, parts)),
        )

    def decode(self, ids: Sequence[int] | np.ndarray, *, skip_specials: bool = True) -> str:
        """Text for ids; what the normaliser took away (case, accents, spacing) stays lost."""
        ids = [int(index) for index in ids]
        if bad := next((index for index in ids if not 0 <= index < len(self)), None):
            raise InputError(f"id {bad} is outside the vocabulary of {len(self):,} pieces")
        return self._backend.decode(ids, skip_special_tokens=skip_specials)

    @cached_property
    def _mask_reader(self) -> tokenizers.Tokenizer:
        """The same tokenizer, in which "[MASK]" spelled out is the special piece."""
        ordinary = [token for token in self._settings["added_tokens"] if not token["special"]]
        mask = [token for token in self._settings["added_tokens"] if token["content"] == "[MASK]"]
        backend = tokenizers.Tokenizer.from_str(json.dumps(self._settings | {"added_tokens": mask + ordinary}))
        backend.no_padding()
        backend.no_truncation()
        return backend

    def _special(self, name: str) -> int:
        return self._settings["model"]["vocab"][name]


_NOWHERE = np.zeros((1, 2), np.int32)
_NO_START = np.zeros(1, bool)


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """How much to keep of two lengths so that both fit: the longer one gives first, and keeps the odd piece."""
    if a + b <= room:
        return a, b
    if a > b:
        return longest_first(b, a, room)[::-1]
    keep_a = min(a, room // 2)
    return keep_a, room - keep_a


def read_vocabulary(file: Path) -> dict[str, int]:
    """vocab.txt: one piece a line, its id the line's number from 0."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{file}: byte {error.start} is not UTF-8; expected one piece a line in UTF-8") from error
    lines = lines[:-1] if lines[-1] == "" else lines
    return {line.rstrip("\r"): index for index, line in enumerate(lines)}


def _pieces(encoding: tokenizers.Encoding) -> Pieces:
    words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int32)
    return Pieces(
        ids=np.array(encoding.ids, np.int32),
        offsets=np.array(encoding.offsets, np.int32).reshape(-1, 2),
        starts=np.diff(words, prepend=np.int32(-2)) != 0,
    )


def _tokenizer_file(path: Path) -> Path:
    files = [path] if path.is_file() else [path / name for name in FILES]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ArtifactError(f"{path}: no tokenizer here; expected {' or '.join(FILES)}")
    return found


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception for every fault in the file
        raise ArtifactError(f"{file}: not a tokenizer file ({error}); get it again, or use vocab.txt") from error


def _stated_casing(folder: Path) -> bool | None:
    """The casing that tokenizer_config.json states, if it is there and does."""
    file = folder / "tokenizer_config.json"
    try:
        lower = json.loads(file.read_text(encoding="utf-8")).get("do_lower_case") if file.is_file() else None
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"{file}: expected a JSON object ({error})") from error
    return None if lower is None else not lower


def _check_settings(settings: dict[str, Any]) -> None:
    """Refuses what is not BERT's WordPiece: other parts would give other ids silently."""
    expected = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
    for part, kind in expected.items():
        found = (settings[part] or {}).get("type", "nothing")
        if found != kind:
            raise ArtifactError(f"the tokenizer's {part} is {found}; expected {kind}")
    if not settings["normalizer"]["clean_text"]:
        raise ArtifactError("the tokenizer's normalizer has clean_text off; expected it on, as BERT was published")
    _check_specials(settings["model"]["vocab"])


def _check_specials(vocabulary: Mapping[str, int]) -> None:
    if missing := [name for name in SPECIALS if name not in vocabulary]:
        raise ArtifactError(
            f"the vocabulary of {len(vocabulary):,} pieces has no {', '.join(missing)}; "
            f"expected all of {' '.join(SPECIALS)}: is this a BERT vocabulary?"
        )


def _first_bad(texts: Sequence[object]) -> str:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return f"{type(text).__name__} at index {index}"
    return "half of a surrogate pair"
