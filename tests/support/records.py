"""Sixteen records of every task that a small network can learn by heart."""

from bertkit.data.records import Choice, Question, Record, Words

ANIMALS = ["cat", "dog", "horse", "bird", "fish", "cow", "sheep", "duck"]
PLACES = ["house", "garden", "river", "field", "forest", "village", "mountain", "road"]
SENTENCES = [f"the {animal} went to the {place} ." for animal, place in zip(ANIMALS * 2, PLACES + PLACES[::-1], strict=True)]


def _label(index):
    return "odd" if index % 2 else "even"


RECORDS = {
    "classification": [Record(text, label=_label(i), place=f"f:{i}") for i, text in enumerate(SENTENCES)],
    "multilabel": [
        Record(text, label=tuple(name for name, yes in (("early", i % 8 < 4), ("odd", i % 2)) if yes))
        for i, text in enumerate(SENTENCES)
    ],
    "regression": [Record(text, SENTENCES[i - 1], label=float(i % 5)) for i, text in enumerate(SENTENCES)],
    "tagging": [
        Words(tuple(text.split()), ("O", "B-ANIMAL", "O", "O", "O", "B-PLACE", "O"), document=i // 4)
        for i, text in enumerate(SENTENCES)
    ],
    "qa": [
        Question("where did it go ?", text, ((text.split()[5], text.index(text.split()[5])),), article=str(i))
        for i, text in enumerate(SENTENCES[:12])
    ]
    + [Question(f"who is the {place} ?", text, impossible=True) for place, text in zip(PLACES, SENTENCES[:4], strict=False)],
    "choice": [
        Choice("the animal went to", (f"the {place}", f"the {animal}", "it"), label=0)
        for animal, place in zip(ANIMALS * 2, PLACES * 2, strict=True)
    ],
    "similarity": [Record(text, SENTENCES[(3 * i + 1) % 16], label=(i % 4) / 4) for i, text in enumerate(SENTENCES)],
}
