"""How well and how fast are documents split into sentences? 500 boundaries checked by hand, and 100 MB of real text.

sentence_boundaries.tsv lists positions in the real corpus where a sentence may end (file, document, character), drawn at
random, fifty per file, and whether one does, as judged by a person.
"""

import csv
import time
from itertools import islice
from pathlib import Path

from measure import arguments, data, report, texts

from bertkit.text.corpus import Corpus
from bertkit.text.sentences import sentence_ends, split_sentences


def main() -> None:
    options = arguments(__doc__, megabytes=100.0)
    right, total = agreement()
    documents = list(texts(options.megabytes))
    size = sum(len(text.encode()) for text in documents) / 1e6
    start = time.perf_counter()
    sentences = sum(len(split_sentences(text)) for text in documents)
    seconds = time.perf_counter() - start
    row = {"agreement": f"{right} of {total}", "MB/s": size / seconds, "sentences": f"{sentences:,}"}
    report("Cutting documents into sentences", [row | {"bytes a sentence": size * 1e6 / sentences}])


def agreement() -> tuple[int, int]:
    """Returns at how many of the positions the rules agree with the person, and the number of positions."""
    with open(Path(__file__).with_name("sentence_boundaries.tsv"), newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    right = 0
    for name in sorted({row["file"] for row in rows}):
        documents = [document.text for document in islice(Corpus([data() / "corpus" / name]), 40)]
        for row in (row for row in rows if row["file"] == name):
            right += decide(documents[int(row["document"])], int(row["character"])) == bool(int(row["ends"]))
    return right, len(rows)


def decide(document: str, place: int) -> bool:
    """Returns whether the rules end a sentence at the terminator at `place`, or at the quotes and spaces after it."""
    begin = document.rfind("\n", 0, place) + 1
    line = document[begin:].split("\n", 1)[0]
    behind = len(line) - len(line[place - begin + 1 :].lstrip("\"')]”’ "))  # where the next word begins
    return behind == len(line) or any(place - begin < end <= behind for end in sentence_ends(line))


if __name__ == "__main__":
    main()
