"""Classification without training: a cloze pattern around the text, and a word for each label, scored by the masked head.

Some words are likelier than others whatever the text. So a word is scored by how much likelier it is here than on average:
over a few labelled examples, if given, which also select the best of several patterns, otherwise with an empty text.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bertkit.data.records import Record
from bertkit.errors import InputError
from bertkit.model.batch import Batch
from bertkit.serve.predictor import Model
from bertkit.tasks.classification import Classified
from bertkit.tasks.metrics import softmax


class Prompt:
    """A model, patterns such as "{text} It was [MASK]." and the word that stands for each label."""

    def __init__(self, model: Model, patterns: Sequence[str], words: Mapping[str, str], examples: Sequence[Record] = ()):
        model.need("masked", "prompt")
        for pattern in patterns:
            if "{text}" not in pattern or pattern.count("[MASK]") != 1:
                raise InputError(f"the pattern is {pattern!r}; expected {{text}} and one [MASK] in it")
        if len(words) < 2 or not patterns:
            found = f"{len(patterns)} patterns and {len(words)} labels"
            raise InputError(f"{found}; expected a pattern, and two labels at least")
        self.model, self.labels = model, list(words)
        self.ids = [_only_piece(model, word) for word in words.values()]
        ranked = [(self._fit(pattern, examples), pattern) for pattern in patterns]
        (self.right, self.usual), self.pattern = max(ranked, key=lambda found: found[0][0])

    def classify(self, texts: Sequence[str]) -> list[Classified]:
        """Returns the likeliest label of each text."""
        chances = softmax(self._scores(self.pattern, texts) - self.usual)
        return [Classified.of(self.labels, row) for row in chances]

    def _fit(self, pattern: str, examples: Sequence[Record]) -> tuple[float, np.ndarray]:
        """Returns the examples' mean probability of their labels with a pattern, and each word's mean log-probability."""
        scores = self._scores(pattern, [example.text for example in examples] or [""])
        usual = scores.mean(0)
        chances = softmax(scores - usual)
        told = [row[self.labels.index(str(one.label))] for row, one in zip(chances, examples, strict=False)]
        return float(np.mean(told or [0.0])), usual

    def _scores(self, pattern: str, texts: Sequence[str]) -> np.ndarray:
        """Returns log-probabilities [N, labels] of the labels' words at [MASK]; a long text is cut, the pattern is not."""
        own = self.model.tokenizer.specials["mask"]
        pieces = self.model.tokenizer.pieces(list(texts))
        around = len(self.model.tokenizer.pieces([pattern.replace("{text}", "")], read_mask=True)[0])
        longest = self.model.config.positions
        room = (longest - 2 - around) // pattern.count("{text}")
        if room < 1:
            raise InputError(f"the pattern has {around} pieces; the model's {longest} leave no room for a text")
        ends = [None if len(p) <= room else p.offsets[room - 1, 1] for p in pieces]
        cut = [text[:end] for text, end in zip(texts, ends, strict=True)]
        filled = [pattern.replace("{text}", text.replace("[MASK]", "mask").replace(own, "mask")) for text in cut]
        encodings = self.model.encode_texts(filled, truncate=False, read_mask=True)
        return np.array(self.model.each("prompting", encodings, self._judge))

    def _judge(self, batch: Batch) -> list[np.ndarray]:
        masks = self.model.masked(batch, lambda logits: logits[:, self.ids] - np.logaddexp.reduce(logits, 1, keepdims=True))
        return [scores for one in masks for scores in one]


def _only_piece(model: Model, word: str) -> int:
    ids = model.tokenizer.pieces([word])[0].ids
    if len(ids) != 1 or ids[0] == model.tokenizer.unk:
        found = "not in" if model.tokenizer.unk in ids else f"{len(ids)} pieces of"
        raise InputError(f"the word {word!r} is {found} this vocabulary; expected a word that is one piece")
    return int(ids[0])
