"""Published datasets by name: their files, task, metrics and submission format.

A dataset's folder is under the data folder, or is the data folder itself. Splits are train, dev and test (without labels),
MNLI's dev-mismatched and test-mismatched, and gold, a test set whose labels were published elsewhere.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.atomic import write_text
from bertkit.data.readers import Columns, Table, read_records
from bertkit.data.records import AnyRecord, Choice, Question, Record, Words
from bertkit.errors import DataError, check_choice


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A published dataset, with the paper's fine-tuning settings where it gives them (section 4, appendix A.3)."""

    task: str
    folder: str
    files: Mapping[str, str]  # split → possible file names, separated by spaces, the published one first
    columns: Columns = field(default_factory=Columns)
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of splits without a header line
    labels: tuple[str, ...] = ()  # in GLUE's order; (): as found in the training file
    metrics: tuple[str, ...] = ("accuracy",)  # the main one first
    handed_in: Mapping[str, str] = field(default_factory=dict)  # split → file of a GLUE submission
    bad: str = "stop"
    epochs: int = 3
    batch: int = 32
    learning_rate: float = 3e-5
    max_length: int = 128


BINARY, TRUTH, ENTAILED = ("0", "1"), ("false", "true"), ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
THREE = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MNLI_FILES = {"train": "train.tsv", "dev": "dev_matched.tsv", "dev-mismatched": "dev_mismatched.tsv"}
MNLI_FILES |= {"test": "test_matched.tsv", "test-mismatched": "test_mismatched.tsv"}
MRPC_FILES = THREE | {"gold": "msr_paraphrase_test.txt"}
CONLL_FILES = {"train": "eng.train train.txt", "dev": "eng.testa valid.txt dev.txt", "test": "eng.testb test.txt"}
SQUAD_FILES = {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}
SQUAD2_FILES = {"train": "train-v2.0.json train-v2.0-partial.json", "dev": "dev-v2.0.json"}
SWAG_FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}
BOOLQ_FILES = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
COLA_HEADERS = dict.fromkeys(("train", "dev"), ("source", "label", "mark", "sentence"))
STSB_HEADERS = {"gold": tuple("genre filename year old_index score sentence1 sentence2 source1 source2".split())}
PAIR, HYPOTHESIS = "label|sentence1|sentence2", "gold_label|sentence1|sentence2"


def _glue(folder: str, columns: str, labels: tuple[str, ...], *metrics: str, **fields: Any) -> NamedSet:
    """Returns a dataset laid out like GLUE's unless the fields differ; columns in the order label, text, pair."""
    label, text, pair = [*columns.split("|"), None][:3]
    fields = dict(files=THREE, handed_in={"test": f"{folder}.tsv"}, metrics=metrics or ("accuracy",)) | fields
    task, named = "classification" if labels else "regression", Columns(text=text, pair=pair, label=label)
    return NamedSet(task=task, folder=folder, columns=named, labels=labels, **fields)


MNLI = _glue("MNLI", HYPOTHESIS, NLI, files=MNLI_FILES, handed_in={"test": "MNLI-m.tsv", "test-mismatched": "MNLI-mm.tsv"})
AX = _glue("diagnostic", HYPOTHESIS, NLI, "matthews", files={"test": "diagnostic.tsv"}, handed_in={"test": "AX.tsv"})
STSB = _glue("STS-B", "score|sentence1|sentence2", (), "spearman", "pearson", headers=STSB_HEADERS)
CONLL = NamedSet(task="tagging", folder="conll2003", files=CONLL_FILES, metrics=("entity_f1",), learning_rate=5e-5)
SQUAD = NamedSet(task="qa", folder="squad", files=SQUAD_FILES, metrics=("f1", "exact"), learning_rate=5e-5, max_length=384)
SWAG = NamedSet(task="choice", folder="swag", files=SWAG_FILES, batch=16)
SETS = {
    "glue/cola": _glue("CoLA", "label|sentence", BINARY, "matthews", "accuracy", headers=COLA_HEADERS),
    "glue/sst2": _glue("SST-2", "label|sentence", BINARY),
    "glue/mrpc": _glue("MRPC", "Quality|#1 String|#2 String", BINARY, "f1", "accuracy", files=MRPC_FILES),
    "glue/stsb": replace(STSB, files=THREE | {"gold": "sts-test-gold.tsv"}),
    # a few rows are broken as published; they are skipped and counted
    "glue/qqp": _glue("QQP", "is_duplicate|question1|question2", BINARY, "f1", "accuracy", bad="skip"),
    "glue/mnli": MNLI,
    "glue/qnli": _glue("QNLI", "label|question|sentence", ENTAILED, files=THREE | {"train": "train.tsv train-rebuilt.tsv"}),
    "glue/rte": _glue("RTE", PAIR, ENTAILED),
    "glue/wnli": _glue("WNLI", PAIR, BINARY),
    "glue/ax": AX,  # predicted by a model trained on MNLI
    "squad/v1": SQUAD,
    "squad/v2": replace(SQUAD, files=SQUAD2_FILES, epochs=2, batch=48),
    "swag": SWAG,
    "hellaswag": replace(SWAG, folder="HellaSwag"),
    "conll2003": replace(CONLL, max_length=512),  # with as much of the document as fits
    "boolq": _glue("BoolQ", "label|question|passage", TRUTH, files=BOOLQ_FILES, handed_in={}, max_length=256),
    "xnli": _glue("XNLI-en", HYPOTHESIS, NLI, files={"dev": "dev.tsv"}, handed_in={}),
}


def read_set(name: str, data_dir: Path | str, split: str, bad: str | None = None) -> Table:
    """Reads one split of a named dataset; a test split may lack labels."""
    chosen, file = SETS[name], find_file(name, data_dir, split)
    columns = replace(chosen.columns, header=chosen.headers.get(split, ()))
    labelled = not split.startswith("test")
    return read_records(file, chosen.task, columns, classes=chosen.labels, labelled=labelled, bad=bad or chosen.bad)


def find_file(name: str, data_dir: Path | str, split: str) -> Path:
    """Returns the file of a split, in the dataset's folder under `data_dir` or in `data_dir` itself."""
    chosen = SETS[name]
    check_choice(f"split of {name}", split, chosen.files)
    files = [Path(data_dir) / folder / file for folder in (chosen.folder, "") for file in chosen.files[split].split()]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        expected = ", ".join(str(file.relative_to(data_dir)) for file in files)
        advice = f"name its folder: --data-dir, or {name}=FOLDER"
        raise DataError(f"no {split} file of {name}; expected {expected}; {advice}", data_dir)
    return found


def write_submission(
    folder: Path | str, name: str, split: str, records: Sequence[Record], predictions: Sequence[str | float]
) -> Path:
    """Writes a GLUE submission file under GLUE's name for it: index and prediction, with scores clipped to 0 … 5."""
    path = Path(folder) / SETS[name].handed_in[split]
    shown = [value if isinstance(value, str) else f"{min(max(float(value), 0.0), 5.0):.3f}" for value in predictions]
    _write_lines(path, ["index\tprediction", *map("\t".join, zip(_ids(records), shown, strict=True))])
    return path


def write_answers(path: Path | str, records: Sequence[Question], answers: Sequence[str | float]) -> None:
    """Writes {id: answer} for SQuAD's script; with numbers as answers, its file of no-answer probabilities."""
    _write_lines(path, [json.dumps(dict(zip(_ids(records), answers, strict=True)))])


def write_tags(path: Path | str, records: Sequence[Words], predictions: Sequence[Sequence[str]]) -> None:
    """Writes word, gold label and predicted label in columns, for conlleval."""
    lines = []
    for record, predicted in zip(records, predictions, strict=True):
        gold = record.labels or ("O",) * len(record.words)
        columns = zip(record.words, gold, predicted, strict=True)
        lines += [*(" ".join("_".join(cell.split()) for cell in cells) for cells in columns), ""]
    _write_lines(path, lines)


def write_choices(path: Path | str, records: Sequence[Choice], predictions: Sequence[int]) -> None:
    """Writes the index of the chosen option for each row, in the order of SWAG's file."""
    _write_lines(path, ["index,prediction", *map(",".join, zip(_ids(records), map(str, predictions), strict=True))])


def _ids(records: Sequence[AnyRecord]) -> list[str]:
    return [record.id or str(number) for number, record in enumerate(records)]


def _write_lines(path: Path | str, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))
