import csv
import io
import json
import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.readers import Columns, read_records
from bertkit.data.records import Choice, Question, Record, Words
from bertkit.errors import BertkitError, DataError, InputError, MissingExtra

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": "The Elbe is 1,094 km long — the Nile longer.",
                    "qas": [
                        {"id": "a1", "question": "How long?", "answers": [{"text": "1,094 km", "answer_start": 12}]},
                        {"id": "a2", "question": "How deep?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture
def read(tmp_path):
    """Writes a file, and reads its records."""

    def read(name, content, task="classification", columns=None, **options):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_records(file, task, columns, **options)

    return read


def refusal(read, *arguments, **options) -> str:
    """The one line that says why a file was refused; with "skip", bad rows are left out instead."""
    with pytest.raises(DataError) as caught:
        read(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bare(records):
    return [(record.text, record.pair, record.label) for record in records]


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# Formats.


def test_csv_with_quotes_line_breaks_and_a_mark(read, tmp_path):
    table = read("a.csv", '\ufefftext,label\r\n"one, ""two""\nthree",yes\r\n\r\nplain,no\r\n')
    assert table.records == [
        Record('one, "two"\nthree', label="yes", place=f"{tmp_path / 'a.csv'}:2"),
        Record("plain", label="no", place=f"{tmp_path / 'a.csv'}:5"),
    ]
    assert table.skipped == 0


def test_in_tsv_a_quote_is_a_character(read):
    table = read("a.tsv", 'sentence\tlabel\n" he said\t1\nthe "end"\t0\n')
    assert bare(table.records) == [('" he said', None, "1"), ('the "end"', None, "0")]


CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_any_text_survives_csv_and_jsonl(rows, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    stream = io.StringIO()
    csv.writer(stream).writerows([("text", "pair", "label"), *rows])
    (folder / "any.csv").write_bytes(stream.getvalue().encode())
    named = [dict(zip(("text", "pair", "label"), row, strict=True)) for row in rows]
    (folder / "any.jsonl").write_text(jsonl(*named))
    expected = [(text, pair, label.strip()) for text, pair, label in rows]
    for name in ("any.csv", "any.jsonl"):
        assert bare(read_records(folder / name, "classification").records) == expected


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=60), name=st.sampled_from(["x.csv", "x.tsv", "x.jsonl", "x.json", "x.conll"]))
@pytest.mark.parametrize("head", [b"", b"text,label\n", b'{"text": "a", "label": 1}\n'])
def test_no_bytes_are_more_than_a_clear_refusal(head, content, name, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(head + content)
    task = {"x.json": "qa", "x.conll": "tagging"}.get(name, "classification")
    for bad in ("stop", "skip"):
        try:
            assert read_records(file, task, bad=bad).records
        except BertkitError as error:
            str(error).encode()


def test_a_cell_may_be_a_long_document(read):
    assert len(read("a.csv", f"text,label\n{'long ' * 60_000},x\n").records[0].text) == 300_000


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        arrow.table({"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [0, None]}), tmp_path / "a.parquet"
    )
    table = read_records(tmp_path / "a.parquet", "classification", bad="skip")
    assert bare(table.records) == [("a", "c", "0")]
    assert table.complaints == [f'{tmp_path / "a.parquet"}:2: no label in "label"; fill it in']
    parquet.write_table(arrow.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet: .*the same name twice; rename one"):
        read_records(tmp_path / "twice.parquet", "classification", labelled=False)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"b\.parquet: not a readable parquet file"):
        read_records(tmp_path / "b.parquet", "classification")


class _Classes:
    def int2str(self, value):
        return ["no", "yes"][value] if isinstance(value, int) else [self.int2str(part) for part in value]


def test_a_datasets_folder(tmp_path, monkeypatch):
    """The library is stood in for, so that the test runs without it."""
    library, data = ModuleType("datasets"), [{"text": "a", "label": 1}, {"text": "b", "label": -1}]
    library.load_from_disk = lambda path: type("D", (list,), {"features": {"text": None, "label": _Classes()}})(data)
    monkeypatch.setitem(sys.modules, "datasets", library)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "state.json").write_text("{}")
    assert bare(read_records(tmp_path / "train", "classification", labelled=False).records) == [
        ("a", None, "yes"),
        ("b", None, None),
    ]
    with pytest.raises(DataError, match=r"the folder holds train; name one of them, such as .*train"):
        read_records(tmp_path, "classification")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"bertkit\[datasets\]"):
        read_records(tmp_path / "train", "classification")


# Columns.


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("text,label", ("text", None, "label")),
        ("sentence,label", ("sentence", None, "label")),
        ("id,sentence1,sentence2,gold_label", ("sentence1", "sentence2", "gold_label")),
        ("premise,hypothesis,class", ("premise", "hypothesis", "class")),
        ("question,sentence,label", ("question", "sentence", "label")),
        ("score,question1,question2", ("question1", "question2", "score")),
    ],
)
def test_usual_names_are_found(read, header, expected):
    columns = read("a.csv", f"{header}\n{'1,' * header.count(',')}1\n").columns
    assert (columns.text, columns.pair, columns.label) == expected


def test_named_columns_win_and_a_text_named_alone_stands_alone(read):
    content = "text,sentence1,sentence2,label,kind\na,b,c,d,e\n"
    assert bare(read("a.csv", content, columns=Columns(text="sentence1")).records) == [("b", None, "d")]
    columns = Columns(text="sentence2", pair="text", label="kind")
    assert bare(read("a.csv", content, columns=columns).records) == [("c", "a", "e")]


def test_a_header_can_be_given_and_its_last_names_may_lack(read):
    columns = Columns(header=("label", "text", "source"))
    assert bare(read("a.tsv", "1\tone\n0\ttwo\tbook\n", columns=columns).records) == [("one", None, "1"), ("two", None, "0")]
    assert ':2: "text" holds nothing; expected a text' in refusal(read, "a.tsv", "1\tone\n0\n", columns=columns)


def test_wrong_column_names_list_those_found(read):
    message = refusal(read, "a.csv", "textt,label\na,b\n", columns=Columns(text="text"))
    assert 'no column "text" (did you mean "textt"?); found textt, label' in message
    message = refusal(read, "a.csv", "body,label\na,b\n")
    assert message.endswith("a.csv: no usual text column; found body, label; name yours with --text")
    assert "no usual label column; found text, mood; name yours with --label" in refusal(read, "a.csv", "text,mood\na,b\n")
    assert "no usual pair column" in refusal(read, "a.csv", "text,label\na,b\n", task="similarity")
    wide = ",".join(f"c{number}" for number in range(30))
    assert "c19 and 10 more" in refusal(read, "a.csv", f"{wide}\n{wide}\n")


def test_labels_may_lack_where_that_is_allowed(read):
    assert bare(read("a.csv", "text\na\n", labelled=False).records) == [("a", None, None)]
    assert bare(read("a.csv", "text\na\n", columns=Columns(label="label"), labelled=False).records) == [("a", None, None)]
    assert bare(read("a.csv", "text,label\na,x\nb,\n", labelled=False).records) == [("a", None, "x"), ("b", None, None)]


# Tasks.


def test_classes_are_spelled_as_in_the_file(read):
    rows = [{"text": "a", "label": value} for value in (True, 3, " x ", "0")]
    assert [record.label for record in read("a.jsonl", jsonl(*rows)).records] == ["true", "3", "x", "0"]


def test_a_class_is_no_list(read):
    message = refusal(read, "a.jsonl", jsonl({"text": "a", "label": ["x"]}))
    assert ':1: "label" holds list; expected a class' in message


def test_lists_in_cells_are_as_predict_writes_them(read):
    content = 'text,label\na,"[""x"", ""y""]"\nb,[]\nc,[SPAM]|z\n'
    labels = [record.label for record in read("a.csv", content, "multilabel").records]
    assert labels == [("x", "y"), (), ("[SPAM]", "z")]


def test_a_column_that_the_first_row_lacks_is_not_lost(read):
    rows = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y", "pair": "c", "odd": 1}\n'
    assert "a.jsonl:2: the first row has no pair, odd; expected it" in refusal(read, "a.jsonl", rows)
    named = read("a.jsonl", rows, columns=Columns(text="text"))
    assert [record.pair for record in named.records] == [None, None]
    rows = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y", "id": "7", "odd": 1}\n'
    assert [record.id for record in read("a.jsonl", rows).records] == ["", "7"]
    assert "no usual text column" in refusal(read, "a.jsonl", "{}\n" + rows)


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_words_with_tags_are_no_table(read, name):
    assert "for tagging .jsonl, .parquet or CoNLL's columns" in refusal(read, name, "words,labels\na,b\n", task="tagging")


def test_numbers_whose_squares_are_none_are_bad_rows(read):
    assert 'label "-1e308"; expected a number' in refusal(read, "a.csv", "text,label\na,1\nb,-1e308\n", task="regression")


def test_multilabel(read):
    rows = [{"text": "a", "label": ["x", "y", "x"]}, {"text": "a", "label": []}, {"text": "a", "label": "x|z"}]
    assert [r.label for r in read("a.jsonl", jsonl(*rows), "multilabel").records] == [("x", "y"), (), ("x", "z")]
    content = 'text,label\na,x | y\nb,\nc,"x, y"\n'
    assert [r.label for r in read("a.csv", content, "multilabel").records] == [("x", "y"), (), ("x, y",)]
    assert '"label" holds int; expected a list' in refusal(read, "a.jsonl", jsonl({"text": "a", "label": 3}), "multilabel")


def test_regression(read):
    assert [r.label for r in read("a.csv", "text,score\na,1.5\nb,-2\nc,1e3\n", "regression").records] == [1.5, -2.0, 1000.0]
    for wrong in ("high", "nan", "inf", '"3,5"'):
        message = refusal(read, "a.csv", f"text,score\na,1\nb,{wrong}\n", "regression")
        assert f'a.csv:3: label "{wrong.strip(chr(34))}"; expected a number (--bad skip' in message


def test_similarity(read):
    assert bare(read("a.csv", "text,pair\na,b\n", "similarity").records) == [("a", "b", None)]
    assert bare(read("a.csv", "text,pair,label\na,b,0.5\n", "similarity").records) == [("a", "b", 0.5)]
    assert bare(read("a.csv", "text,pair,label\na,b,neutral\n", "similarity").records) == [("a", "b", "neutral")]
    triplet = read("a.csv", "anchor,positive,negative\na,b,c\n", "similarity").records[0]
    assert (triplet.text, triplet.pair, triplet.negative) == ("a", "b", "c")
    assert '"negative" holds an empty text' in refusal(read, "a.csv", "anchor,positive,negative\na,b,\n", "similarity")


@pytest.mark.parametrize("names", [("words", "labels"), ("tokens", "tags"), ("tokens", "ner_tags")])
def test_tagging_from_json(read, names):
    content = jsonl(*(dict(zip(names, row, strict=True)) for row in [(["A", "b"], ["B", "O"]), (["c"], ["O"])]))
    first, second = read("a.jsonl", content, "tagging").records
    assert (first.words, first.labels, second.labels) == (("A", "b"), ("B", "O"), ("O",))
    assert first.document != second.document
    wrong = jsonl(dict(zip(names, (["A", "b"], ["B"]), strict=True)))
    assert ":1: 2 words and 1 labels; expected one label to each word" in refusal(read, "a.jsonl", wrong, "tagging")


START = "-DOCSTART- -X- O O\n\n"
CONLL = f"{START}EU NNP I-NP I-ORG\nsays VBZ I-VP O\n\n\nPeter NNP I-NP S-PER\n \n{START}End NN I-NP O"


def test_conll_columns(read, tmp_path):
    for ending in ("\n", "\r\n"):
        assert read("eng.train", CONLL.replace("\n", ending), "tagging").records == [
            Words(("EU", "says"), ("I-ORG", "O"), 0, place=f"{tmp_path / 'eng.train'}:3"),
            Words(("Peter",), ("S-PER",), 0, place=f"{tmp_path / 'eng.train'}:7"),
            Words(("End",), ("O",), 1, place=f"{tmp_path / 'eng.train'}:11"),
        ]


def test_conll_without_documents_or_labels(read):
    unmarked = read("a.tsv", "a\tO\n\nb\tO\nc\u00a0d\tO\n", "tagging").records
    assert [(r.words, r.document) for r in unmarked] == [(("a",), 0), (("b", "c\u00a0d"), 1)]
    unlabelled = read("a.txt", "a\nb\n\nc\n", "tagging", labelled=False).records
    assert [(r.words, r.labels) for r in unlabelled] == [(("a", "b"), None), (("c",), None)]
    assert "no usual label column" in refusal(read, "a.txt", "a\nb\n", "tagging")


def test_conll_lines_with_missing_columns(read):
    content = "a NN O\nb NN O\n\nc NN O\nd O\ne NN O\n\nf NN O\n"
    message = refusal(read, "a.conll", content, "tagging")
    assert "a.conll:5: 2 columns, expected 3, word first, label last; fix the line (--bad skip" in message
    table = read("a.conll", content, "tagging", bad="skip")
    assert [record.words for record in table.records] == [("a", "b"), ("f",)], "the whole sentence goes"
    assert table.skipped == 1 and "a.conll:5" in table.complaints[0]


def test_squad(read, tmp_path):
    for indent in (None, 1):
        table = read("a.json", json.dumps(SQUAD, indent=indent, ensure_ascii=False), "qa")
        first, second = table.records
        assert (first.question, first.answers, first.impossible, first.article, first.id) == (
            *("How long?", (("1,094 km", 12),), False, "Rivers", "a1"),
        )
        assert (second.answers, second.impossible, second.id) == ((), True, "a2")
    lines = (tmp_path / "a.json").read_text().split("\n")
    assert '"a2"' in lines[int(second.place.rpartition(":")[2]) - 1]


def test_squad_answers_that_are_not_where_they_should_be(read):
    text = json.dumps(SQUAD).replace('"answer_start": 12', '"answer_start": 11')
    message = refusal(read, "a.json", text, "qa")
    assert 'a.json:1: the answer "1,094 km" is not at character 11, where " 1,094 k" stands; fix' in message
    assert "(id a1)" in message
    table = read("a.json", text, "qa", bad="skip")
    assert [record.id for record in table.records] == ["a2"] and table.skipped == 1
    for offset in ('"x"', "-1", "null"):
        wrong = (
            json.dumps(SQUAD).replace('"answer_start": 12', f'"answer_start": {offset}').replace("1,094 km long", "short")
        )
        assert "a.json:1: " in refusal(read, "a.json", wrong, "qa")


def test_squad_cut_in_the_middle_or_of_another_layout(read):
    text = json.dumps(SQUAD, indent=1)
    message = refusal(read, "a.json", text[:300], "qa")
    assert f"a.json:{text[:300].count(chr(10)) + 1}: the JSON is cut off or wrong" in message
    assert "expected SQuAD's layout: data, paragraphs, qas and context" in refusal(read, "a.json", '{"rows": []}', "qa")
    assert "expected SQuAD's layout" in refusal(read, "a.json", '{"data": [{"paragraphs": [{"qas": [3]}]}]}', "qa")
    assert "no usable rows" in refusal(read, "a.json", '{"data": []}', "qa")


def test_flat_questions(read):
    context = "It rained and rained."
    rows = [
        {"question": "q", "context": context, "answers": {"text": ["rained"], "answer_start": [14]}},
        {"question": "q", "context": context, "answers": [{"text": "rained", "answer_start": 3}]},
        {"question": "q", "context": context, "answers": ["rained", "It"]},
        {"question": "q", "context": context, "answers": {"text": [], "answer_start": []}},
    ]
    questions = read("a.jsonl", jsonl(*rows), "qa").records
    assert [q.answers for q in questions] == [(("rained", 14),), (("rained", 3),), (("rained", 3), ("It", 0)), ()]
    assert [q.impossible for q in questions] == [False, False, False, True]
    content = "question,context,answer,answer_start\nq,it rained,rained,3\nq,it rained,it,\nq,it rained,,\n"
    questions = read("a.csv", content, "qa").records
    assert [q.answers for q in questions] == [(("rained", 3),), (("it", 0),), ()]
    assert questions[2].impossible
    assert 'the answer "snow" is not in the context' in refusal(
        read, "a.csv", "question,context,answer\nq,it rained,snow\n", "qa"
    )
    unlabelled = read("a.csv", "question,context\nq,c\n", "qa", labelled=False).records[0]
    assert isinstance(unlabelled, Question) and not unlabelled.impossible
    broken = jsonl({"question": "q", "context": "c", "answers": {"text": ["c"]}})
    assert "answers that cannot be read" in refusal(read, "a.jsonl", broken, "qa")


SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def test_swag(read, tmp_path):
    content = SWAG_HEADER + '0,v,1,x,"She sits, tired.",She,gold,runs.,sleeps.,flies.,sings.,1\n1,v,2,x,He,,gold,a,b,c,d,3\n'
    options = ("She runs.", "She sleeps.", "She flies.", "She sings.")
    assert read("train.csv", content, "choice").records == [
        Choice("She sits, tired.", options, 1, place=f"{tmp_path / 'train.csv'}:2"),
        Choice("He", ("a", "b", "c", "d"), 3, place=f"{tmp_path / 'train.csv'}:3"),
    ]
    wrong = SWAG_HEADER + "0,v,1,x,s,,gold,a,b,c,d,4\n"
    assert ':2: label "4"; expected the number of an option, 0 to 3' in refusal(read, "a.csv", wrong, "choice")
    test = SWAG_HEADER.replace(",label", "") + "0,v,1,x,s,t,gold,a,b,c,d\n"
    assert read("test.csv", test, "choice", labelled=False).records[0].label is None


def test_choices_from_json(read):
    content = jsonl(
        {"prompt": "p", "options": ["a", "b", "c"], "label": 2}, {"prompt": "p", "options": ["a", "b"], "label": "0"}
    )
    assert [(len(r.options), r.label) for r in read("a.jsonl", content, "choice").records] == [(3, 2), (2, 0)]
    assert '"options" holds an empty text' in refusal(
        read, "a.jsonl", jsonl({"prompt": "p", "options": ["a", ""], "label": 0}), "choice"
    )


# Bad input.


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,x\n ,y\n", ':3: "text" holds an empty text; fill it in'),
        ("a.csv", "text,label\na,x\nb,\n", ':3: no label in "label"; fill it in'),
        ("a.csv", "text,label\na,x\nb\n", ":3: 1 columns, expected 2 (text, label); fix the row"),
        ("a.csv", "text,label\na,x\nb,c,d\n", ":3: 3 columns, expected 2 (text, label); fix the row"),
        ("a.csv", 'text,label\na,x\n"b"c,y\n', ":3: not CSV up to line 3"),
        ("a.tsv", "text\tlabel\na\tx\nb\n", ":3: 1 columns, expected 2 (text, label); fix the row"),
        (
            "a.csv",
            b"text,label\na,x\nb\xff,y\n",
            ':3: "text" holds byte 0xff, which is not UTF-8; convert the file to UTF-8',
        ),
        (
            "a.csv",
            b"text,label\na,x\nb,\xe9\n",
            ':3: "label" holds byte 0xe9, which is not UTF-8; convert the file to UTF-8',
        ),
        ("a.tsv", b"text\tlabel\na\tx\nb\0\ty\n", ':3: "text" holds a NUL; remove it'),
        ("a.jsonl", jsonl({"text": "a", "label": 1}) + "\n" + '{"text": "b", "la', ":3: JSON that is cut off or wrong"),
        ("a.jsonl", jsonl({"text": "a", "label": 1}) + "\n" + "[1]\n", ":3: [1]; expected an object"),
        ("a.jsonl", jsonl({"text": "a", "label": 1}) + "\n" + '{"label": 1}\n', ':3: "text" holds nothing; expected a text'),
        ("a.jsonl", jsonl({"text": "a", "label": 1}, {"text": 5, "label": 1}), ':2: "text" holds int; expected a text'),
        (
            "a.jsonl",
            jsonl({"text": "a", "label": 1}) + "\n" + '{"text": "\\ud83d", "label": 1}\n',
            "half of a surrogate pair",
        ),
        ("a.jsonl", jsonl({"text": "a", "label": 1}) + "\n" + '{"text": "b\\u0000", "label": 1}\n', "a NUL; remove it"),
    ],
)
def test_bad_rows_stop_with_their_line_or_are_skipped_and_counted(read, name, content, message):
    stopped = refusal(read, name, content)
    assert message in stopped and name in stopped and stopped.endswith("(--bad skip leaves such rows out)")
    table = read(name, content, bad="skip")
    assert [record.text for record in table.records] == ["a"]
    assert table.skipped == 1
    assert message in table.complaints[0] and "--bad" not in table.complaints[0]


def test_only_the_first_complaints_are_kept_and_all_are_counted(read):
    table = read("a.csv", "text,label\n" + ",x\n" * 50 + "a,x\n", bad="skip")
    assert (len(table.records), table.skipped, len(table.complaints)) == (1, 50, 10)


def test_a_ragged_first_row_does_not_hide_the_columns(read):
    assert bare(read("a.csv", "text,label\nb\na,x\n", bad="skip").records) == [("a", None, "x")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no usable rows; expected one at least"),
        ("text,label\n", "no usable rows; expected one at least"),
        ("text,text,label\na,b,c\n", ":1: the header holds the same name twice; rename one"),
        ('text,label\na,x\n"b,y\nc,z\n', ":3: a quoted cell begins here and never ends; close it"),
        ("text,label\na,x\n".encode("utf-16"), ":1: the header holds byte 0xff, which is not UTF-8"),
        ("text,label\n,x\n", "expected one at least. 1 were skipped. "),
    ],
)
def test_what_no_skipping_mends(read, content, message):
    assert message in refusal(read, "a.csv", content, bad="skip")


def test_a_label_outside_the_known_classes(read):
    message = refusal(read, "a.csv", "text,label\na,good\nb,goood\n", classes=("good", "bad"))
    assert 'a.csv:3: label "goood" (did you mean "good"?); expected good, bad' in message
    assert "expected O" in refusal(read, "a.conll", "a B-X\n", "tagging", classes=("O",))


def test_files_and_arguments_that_do_not_fit(read, tmp_path):
    assert "no such file" in refusal(lambda: read_records(tmp_path / "none.csv", "classification"))
    assert "a folder; expected a file" in refusal(lambda: read_records(tmp_path, "classification"))
    assert "expected .csv, .tsv, .jsonl or .parquet" in refusal(read, "a.xlsx", "x")
    with pytest.raises(InputError, match=r"task is 'clasification' .did you mean .classification."):
        read("a.csv", "text,label\na,b\n", "clasification")
    with pytest.raises(InputError, match="bad is 'ignore'; expected one of stop, skip"):
        read("a.csv", "text,label\na,b\n", bad="ignore")


def test_nothing_is_no_class_and_no_list_no_options(read):
    assert '"label" holds nothing; expected a class' in refusal(read, "a.jsonl", '{"text": "a", "label": NaN}\n')
    assert "no options in" in refusal(read, "a.jsonl", jsonl({"prompt": "a", "options": [], "label": 0}), task="choice")
    assert "cells are cut at commas" in refusal(read, "a.csv", "text|label\na|x\n")


def test_rows_given_in_python_are_read_as_those_of_a_file(read):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": "x", "more": [1]}]
    assert bare(read_records(rows, "classification").records) == bare(read("a.jsonl", jsonl(*rows)).records)
    assert read_records([*rows, "c", {"text": "d"}], "classification", bad="skip").complaints == [
        "rows:3: c; expected an object, in braces, of cells by the names of columns",
        'rows:4: no label in "label"; fill it in',
    ]
    for wrong in ([], [rows]):
        with pytest.raises(DataError, match=r"^rows:"):
            read_records(wrong, "classification")


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_csv_is_separated_by_what_its_header_is(read, sign):
    content = f'\ufefftext{sign}label\r\n"a, b; c\td"{sign}x\r\n"said ""no"""{sign}y\r\n'
    assert bare(read("a.csv", content).records) == [("a, b; c\td", None, "x"), ('said "no"', None, "y")]
    assert "3 columns, expected 2" in refusal(read, "b.csv", f"text{sign}label\na{sign}b{sign}c\n")
