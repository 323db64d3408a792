import json

import pytest

from bertkit.data.readers import TASKS
from bertkit.data.records import Choice, Question, Record, Words
from bertkit.data.sets import SETS, find_file, read_set, write_answers, write_choices, write_submission, write_tags
from bertkit.errors import DataError, InputError

METRICS = {"accuracy", "f1", "matthews", "spearman", "pearson", "entity_f1", "exact"}
COUNTS = {  # of the files as they lie in BERTKIT_DATA; its manifest says which are rebuilt or partial
    "glue/cola": {"train": 8551, "dev": 1043, "test": 1063},
    "glue/sst2": {"train": 67349, "dev": 872, "test": 1821},
    "glue/mrpc": {"train": 3668, "dev": 408, "test": 1725, "gold": 1725},
    "glue/stsb": {"train": 5749, "dev": 1500, "test": 1379, "gold": 1379},
    "glue/qqp": {"train": 20000, "dev": 3497},
    "glue/mnli": {"dev": 9815},
    "glue/qnli": {"train": 104743, "dev": 5463, "test": 5463},
    "glue/rte": {"train": 2490, "dev": 277, "test": 3000},
    "glue/wnli": {"train": 635, "dev": 71, "test": 146},
    "glue/ax": {"test": 1104},
    "squad/v1": {"train": 87599, "dev": 10570},
    "squad/v2": {"train": 105063, "dev": 11873},
    "hellaswag": {"train": 39905, "dev": 10042},
    "conll2003": {"train": 14041, "dev": 3250, "test": 3453},
    "boolq": {"train": 9427, "dev": 3270},
    "xnli": {"dev": 2490},
}


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, splits in COUNTS.items() for split in splits])
def test_real_files_have_the_counts_of_the_manifest(data, name, split):
    table = read_set(name, data / "tasks", split)
    assert (len(table.records), table.skipped) == (COUNTS[name][split], 0)
    labelled = [record for record in table.records if getattr(record, "label", getattr(record, "labels", None)) is not None]
    if SETS[name].task != "qa":
        assert len(labelled) == (0 if split == "test" and name != "conll2003" else len(table.records))
    if SETS[name].labels and labelled:
        assert {record.label for record in labelled} == set(SETS[name].labels)


def test_real_squad_and_conll_in_detail(data):
    assert sum(q.impossible for q in read_set("squad/v2", data / "tasks", "dev").records) == 5945
    assert sum(q.impossible for q in read_set("squad/v2", data / "tasks", "train").records) == 17464
    questions = read_set("squad/v1", data / "tasks" / "squad", "dev").records
    assert len({q.article for q in questions}) == 48 and not any(q.impossible for q in questions)
    for folder in ("conll2003", "conll2003/original-iob1"):
        for split, words, documents in (("train", 203621, 946), ("dev", 51362, 216), ("test", 46435, 231)):
            sentences = read_set("conll2003", data / "tasks" / folder, split).records
            assert sum(len(sentence.words) for sentence in sentences) == words
            assert sentences[-1].document == documents - 1


# Files in the published formats, with two rows each.
MNLI_LEFT = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse".split()
)
MNLI_ROW = ["0", "31193", "31193n", "government", "( a )", "( b )", "(ROOT a)", "(ROOT b)", 'He said "no', "He refused."]
SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
PUBLISHED = {
    "MNLI/train.tsv": [[*MNLI_LEFT, "sentence1", "sentence2", "label1", "gold_label"], [*MNLI_ROW, "neutral", "neutral"]],
    "MNLI/dev_mismatched.tsv": [
        [*MNLI_LEFT, "sentence1", "sentence2", *(f"label{n}" for n in range(1, 6)), "gold_label"],
        [*MNLI_ROW, *["contradiction"] * 6],
    ],
    "MNLI/test_matched.tsv": [[*MNLI_LEFT, "sentence1", "sentence2"], MNLI_ROW],
    "MNLI/test_mismatched.tsv": [[*MNLI_LEFT, "sentence1", "sentence2"], MNLI_ROW],
    "QQP/test.tsv": [["id", "question1", "question2"], ["0", "Why?", "Why not?"]],
    "QNLI/train.tsv": [["index", "question", "sentence", "label"], ["0", "Who?", "She did.", "entailment"]],
}


@pytest.fixture
def published(tmp_path):
    for name, rows in PUBLISHED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "swag").mkdir()
    (tmp_path / "swag" / "train.csv").write_text(f"{SWAG},label\r\n0,anetv,1,x,One sits.,Two,gen,runs.,b.,c.,d.,2\r\n")
    (tmp_path / "swag" / "val.csv").write_text(f"{SWAG},label\r\n0,lsmdc,1,x,One sits.,Two,gold,runs.,b.,c.,d.,0\r\n")
    (tmp_path / "swag" / "test.csv").write_text(f"{SWAG}\r\n0,lsmdc,1,x,One sits.,Two,gold,runs.,b.,c.,d.\r\n")
    return tmp_path


def test_published_formats(published):
    read = {split: read_set("glue/mnli", published, split).records[0] for split in SETS["glue/mnli"].files if split != "dev"}
    assert {(record.text, record.pair, record.id) for record in read.values()} == {('He said "no', "He refused.", "0")}
    assert [read[split].label for split in ("train", "dev-mismatched", "test")] == ["neutral", "contradiction", None]
    assert read_set("glue/qqp", published, "test").records[0].label is None
    assert read_set("glue/qnli", published, "train").records[0].pair == "She did."
    swag = [read_set("swag", published, split).records[0] for split in ("train", "dev", "test")]
    assert [choice.label for choice in swag] == [2, 0, None]
    assert swag[0].options == ("Two runs.", "Two b.", "Two c.", "Two d.")


def test_the_data_folder_may_be_the_set_itself(published):
    assert find_file("glue/mnli", published, "train") == published / "MNLI" / "train.tsv"
    assert find_file("glue/mnli", published / "MNLI", "train") == published / "MNLI" / "train.tsv"


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path):
    row = "1\t2\t3\tone?\ttwo?\t0\n"
    (tmp_path / "train.tsv").write_text(f"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n{row}4\t5\n{row}")
    table = read_set("glue/qqp", tmp_path, "train")
    assert (len(table.records), table.skipped) == (2, 1) and "train.tsv:3: 2 columns, expected 6" in table.complaints[0]
    with pytest.raises(DataError, match=r"train\.tsv:3"):
        read_set("glue/qqp", tmp_path, "train", "stop")


def test_what_is_not_there(published):
    with pytest.raises(InputError, match="split of glue/ax is 'dev'; expected one of test"):
        read_set("glue/ax", published, "dev")
    with pytest.raises(DataError, match=r"no dev file of glue/mnli; expected MNLI/dev_matched\.tsv, dev_matched\.tsv; name"):
        read_set("glue/mnli", published, "dev")
    (published / "MNLI" / "dev_matched.tsv").write_text("sentence1\tsentence2\tgold_label\na\tb\t-\n")
    with pytest.raises(DataError, match=r'dev_matched\.tsv:2: label "-"; expected entailment, neutral, contradiction'):
        read_set("glue/mnli", published, "dev")


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_complete(name):
    chosen = SETS[name]
    assert chosen.task in TASKS
    assert chosen.metrics and set(chosen.metrics) <= METRICS
    assert set(chosen.handed_in) <= set(chosen.files) and set(chosen.headers) <= set(chosen.files)
    assert (2 <= chosen.epochs <= 4, 16 <= chosen.batch <= 48, 2e-5 <= chosen.learning_rate <= 5e-5) == (True,) * 3


def test_glue_takes_these_files():
    names = {file for chosen in SETS.values() for file in chosen.handed_in.values()}
    stems = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    assert names == {f"{stem}.tsv" for stem in stems}


def test_submissions(tmp_path):
    records = [Record("a", id="7"), Record("b", id="9")]
    file = write_submission(tmp_path, "glue/mnli", "test-mismatched", records, ["neutral", "entailment"])
    assert file == tmp_path / "MNLI-mm.tsv"
    assert file.read_text() == "index\tprediction\n7\tneutral\n9\tentailment\n"
    file = write_submission(tmp_path, "glue/stsb", "test", [Record("a"), Record("b"), Record("c")], [-0.2, 3.14159, 5.6])
    assert file.read_text() == "index\tprediction\n0\t0.000\n1\t3.142\n2\t5.000\n"
    with pytest.raises(ValueError, match="zip"):
        write_submission(tmp_path, "glue/cola", "test", records, ["0"])
    assert not (tmp_path / "CoLA.tsv").exists()


def test_answers(tmp_path):
    write_answers(tmp_path / "predictions.json", [Question("q", "c", id="x"), Question("q", "c", id="y")], ["Zürich", ""])
    assert json.loads((tmp_path / "predictions.json").read_text()) == {"x": "Zürich", "y": ""}
    write_answers(tmp_path / "null.json", [Question("q", "c", id="x")], [0.25])
    assert json.loads((tmp_path / "null.json").read_text()) == {"x": 0.25}


def test_tags_and_choices(tmp_path):
    sentences = [Words(("New York", "wins"), ("B-ORG", "O")), Words(("ok",))]
    write_tags(tmp_path / "out.txt", sentences, [["B-LOC", "O"], ["O"]])
    assert (tmp_path / "out.txt").read_text() == "New_York B-ORG B-LOC\nwins O O\n\nok O O\n\n"
    write_choices(tmp_path / "out.csv", [Choice("p", ("a", "b"))] * 2, [1, 0])
    assert (tmp_path / "out.csv").read_text() == "index,prediction\n0,1\n1,0\n"
