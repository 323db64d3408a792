"""The kinds of tokenizer in the family, built from components of the `tokenizers` library.

- WordPiece: BERT, DistilBERT, ELECTRA.
- Byte-level BPE: RoBERTa, DistilRoBERTa, Longformer, ModernBERT.
- Unigram, from SentencePiece: ALBERT, DeBERTa v2 and v3, XLM-RoBERTa, CamemBERT.

Each special piece has one of two spellings, looked up by role. A pair has one or two separators between its parts.
"""

import json
import re
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertkit.errors import ArtifactError

MAX_WORD = 100  # characters; WordPiece turns a longer word into [UNK]
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
SPLITTERS = {"WordPiece": "BertPreTokenizer", "BPE": "ByteLevel", "Unigram": "Metaspace"}  # each model's pre-tokenizer


def wordpiece(vocabulary: dict[str, int], *, max_word: int = MAX_WORD, **steps: bool) -> Backend:
    model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=max_word)
    normalizer = normalizers.BertNormalizer(**steps)
    return _put_together(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##", cleanup=True))


def byte_bpe(model: models.BPE, *, blank: bool = False) -> Backend:
    """RoBERTa's: falls back to bytes, so any text can be encoded. White space belongs to the following word; `blank` puts a
    space before the first."""
    return _put_together(model, None, pre_tokenizers.ByteLevel(add_prefix_space=blank), decoders.ByteLevel())


def albert(model: models.Unigram, *, cased: bool, accents: bool, charsmap: bytes = b"") -> Backend:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [] if cased else [normalizers.Lowercase()]
    steps += [normalizers.Precompiled(charsmap)] if charsmap else []
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return _put_together(model, normalizers.Sequence(steps), splitter, decoders.Metaspace())


def deberta(model: models.Unigram, *, cased: bool) -> Backend:
    steps = [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
    normalizer = normalizers.Sequence(steps if cased else [normalizers.Lowercase(), *steps])
    backend = _put_together(model, normalizer, pre_tokenizers.Metaspace(), decoders.Metaspace())
    backend.add_special_tokens(["[MASK]"])  # not in the file's vocabulary
    return backend


def _put_together(model: models.Model, normalizer: Any, splitter: Any, decoder: Any) -> Backend:
    backend = Backend(model)
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, splitter, decoder
    return backend


def check(settings: dict[str, Any]) -> None:
    """Raises ArtifactError for a tokenizer of another kind, whose ids could silently differ."""
    model, parts = settings["model"]["type"], re.findall(r'"type": "(\w+)"', json.dumps(settings["pre_tokenizer"]))
    if SPLITTERS.get(model) not in parts or (model == "WordPiece" and len(parts) > 1):
        found = " and ".join(parts) or "no pre-tokenizer"
        expected = ", ".join(f"{model} with {splitter}" for model, splitter in SPLITTERS.items())
        raise ArtifactError(f"the tokenizer is {model} with {found}; expected one of {expected}")
    normalizer = settings["normalizer"] or {}
    if model == "WordPiece" and not normalizer.get("clean_text"):
        expected = "expected BertNormalizer with clean_text on, as BERT was published"
        raise ArtifactError(f"the tokenizer's normalizer is {normalizer.get('type', 'nothing')}; {expected}")
    added = [token["content"] for token in settings["added_tokens"] if not token["special"]]
    if model == "WordPiece" and (wide := [piece for piece in added if any(map(str.isspace, piece))]):
        raise ArtifactError(f"the added piece {wide[0]!r} holds white space, which is not supported; expected one word")


def complete(backend: Backend) -> dict[str, str]:
    """Returns the special pieces by role; where the file did not, marks them as special and adds them around texts."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    names = _special_names(backend.get_vocab(), added)
    # RoBERTa's mask includes the white space before it, as every word there does.
    strips = names["mask"] if isinstance(backend.model, models.BPE) else None
    new = [AddedToken(name, normalized=False, lstrip=name == strips) for name in names.values() if name not in added]
    backend.add_special_tokens(new)
    cls, sep = names["cls"], names["sep"]
    if not backend.num_special_tokens_to_add(True):
        frame(backend, names, 1 + (cls == "<s>"), second=int(cls != "<s>"))
    found = " ".join(backend.encode("", "").tokens)
    if found not in (f"{cls} {sep} {sep}", f"{cls} {sep} {sep} {sep}"):
        expected = f"expected {cls} A {sep} B {sep}, or {sep} {sep} between"
        raise ArtifactError(f"the tokenizer frames a pair with {found}; {expected}")
    return names


def frame(backend: Backend, names: dict[str, str], between: int, second: int) -> None:
    """Adds [CLS] A [SEP] B [SEP], with `between` separators in the middle and segment `second` for all after A's."""
    cls, sep = names["cls"], names["sep"]
    behind = [*[sep] * (between - 1), "$B", sep]
    single, ids = f"{cls} $A {sep}", [(name, backend.token_to_id(name)) for name in (cls, sep)]
    pair = " ".join([single, *(f"{one}:{second}" for one in behind)])
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _special_names(known: dict[str, int], added: set[str]) -> dict[str, str]:
    """Returns each role's spelling: preferably one marked as special, else one in the vocabulary."""
    names = {role: max(two, key=lambda name: (name in added, name in known)) for role, two in SPELLINGS.items()}
    if missing := [" or ".join(SPELLINGS[role]) for role, name in names.items() if name not in known]:
        raise ArtifactError(f"the vocabulary of {len(known):,} pieces has no {', no '.join(missing)}: is it a BERT's?")
    return names


def guard(backend: Backend, names: list[str]) -> None:
    """Splits special pieces spelled out in a text after their first character; Unigram would match them whole."""
    spelled = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
    cut = pre_tokenizers.Split(Regex(spelled), "merged_with_previous")
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, cut])
