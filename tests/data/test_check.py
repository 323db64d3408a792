import json
from pathlib import Path

import pytest

from bertkit.data.check import check_data, describe_check
from bertkit.data.readers import Table, read_records
from bertkit.data.records import Choice, Question, Record, Words


def table(task, records):
    return Table(Path("data.csv"), task, records=records)


@pytest.fixture
def splits(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nThe dog ran.,yes\na cat,no\nthe  DOG ran.,no\nthe end,rare\n,yes\n")
    (tmp_path / "dev.csv").write_text("text,label\nThe dog ran.,yes\nnew text,maybe\n")
    return {name: read_records(tmp_path / f"{name}.csv", "classification", bad="skip") for name in ("train", "dev")}


def test_the_report_finds_what_was_hidden_in_the_files(splits, tokenizer, tmp_path):
    report = check_data(splits, tokenizer, max_length=6)
    train, dev = report["splits"]["train"], report["splits"]["dev"]
    assert (train["rows"], train["skipped"], dev["rows"]) == (4, 1, 2)
    assert train["complaints"] == [f'{tmp_path / "train.csv"}:6: "text" holds an empty text; fill it in']
    assert train["labels"] == {"no": 2, "yes": 1, "rare": 1}
    assert (train["repeated"], train["contradicting"]) == (1, 1)
    assert train["examples"] == [f"{tmp_path / 'train.csv'}:2 = {tmp_path / 'train.csv'}:4"]
    leak = report["leaks"]["train, dev"]
    assert leak["rows"] == 1 and leak["examples"][0].endswith(f"= {tmp_path / 'dev.csv'}:2")
    assert report["labels_only_once"] == ["rare", "yes"]
    assert report["labels_not_in_training"] == ["maybe"]
    json.dumps(report)


def test_lengths_are_those_of_the_encodings(tokenizer):
    texts = ["the dog ran.", "a cat and a dog", "x", "the end of it, 2 dogs"]
    pairs = [Record(a, b) for a, b in zip(texts, texts[::-1], strict=True)]
    report = check_data({"train": table("classification", pairs)}, tokenizer, max_length=20)["splits"]["train"]
    lengths = sorted(len(tokenizer.encode(record.text, record.pair)) for record in pairs)
    assert report["lengths"]["longest"] == lengths[-1]
    assert report["long"] == sum(length > 20 for length in lengths)
    assert report["long_are"] == "truncated"


@pytest.mark.parametrize(
    ("task", "record", "sequence", "labels"),
    [
        ("similarity", Record("the dog", "ran.", negative="a cat and a dog"), ("a cat and a dog",), {"unlabelled": 1}),
        ("tagging", Words(("the", "dog"), ("O", "B-X")), ("the dog",), {"O": 1, "B-X": 1}),
        ("qa", Question("who?", "the dog", (("dog", 4),)), ("who?", "the dog"), {"answerable": 1}),
        ("qa", Question("who?", "the dog", impossible=True), ("who?", "the dog"), {"unanswerable": 1}),
        ("choice", Choice("the dog", ("ran.", "ran and ran."), 1), ("the dog", "ran and ran."), {"1": 1}),
        ("multilabel", Record("the dog", label=("x", "y")), ("the dog",), {"x": 1, "y": 1}),
        ("multilabel", Record("the dog", label=()), ("the dog",), {"no class": 1}),
    ],
)
def test_every_kind_of_record(tokenizer, task, record, sequence, labels):
    report = check_data({"train": table(task, [record])}, tokenizer, max_length=3)["splits"]["train"]
    assert report["lengths"]["longest"] == len(tokenizer.encode(*sequence))
    assert report["labels"] == labels
    assert report["long"] == 1
    assert report["long_are"] == ("read in windows" if task in ("qa", "tagging") else "truncated")


def test_numbers_are_summed_up(tokenizer):
    records = [Record("a", label=1.0), Record("b", label=2.0), Record("c", label=4.5)]
    report = check_data({"train": table("regression", records)}, tokenizer, max_length=9)
    assert report["splits"]["train"]["numbers"] == {"lowest": 1.0, "mean": 2.5, "highest": 4.5}
    assert "  labels: lowest 1, mean 2.5, highest 4.5" in describe_check(report)


def test_the_report_reads_well(splits, tokenizer):
    text = "\n".join(describe_check(check_data(splits, tokenizer, max_length=6)))
    for line in (
        "train: 4 rows,",
        "1 bad rows skipped",
        "labels: no 2 (50.0%), yes 1 (25.0%), rare 1 (25.0%)",
        "rows over 6 are truncated",
        "repeated: 1 rows, 1 with another label",
        "train, dev: 1 rows in both",
        "labels only once: rare, yes",
        "labels not in training: maybe",
    ):
        assert line in text
