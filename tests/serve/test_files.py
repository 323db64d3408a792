"""Answers for files: every task over every format, the same bytes whatever stops the run or does the work."""

import csv
import json
import os
import random
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from support.records import RECORDS, SENTENCES
from tasks.test_task import WORDS
from typer.testing import CliRunner

import bertkit
from bertkit.bundle.bundle import Bundle, save_bundle
from bertkit.cli import app
from bertkit.errors import DataError, InputError
from bertkit.model.config import Config
from bertkit.serve import files
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import Tokenizer

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def save_model(name, folder, **changes):
    """A small model of a task with random weights."""
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], cased=False)
    config = Config(vocabulary=len(tokenizer), layers=1, width=16, heads=2, feedforward=32, positions=64)
    torch.manual_seed(0)
    task = TASKS[name](TASKS[name].learn(TaskSettings(task=name, max_length=32, **changes), RECORDS[name]))
    network = build_network(config, task)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    save_bundle(Bundle(network, tokenizer, task=task), folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in TASKS:
        save_model(name, folder / name)
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 5)


def row_of(record, name, number):
    """A row as a user has it: an id, the columns of the task, and one that nobody asked for."""
    told = {
        "tagging": lambda: {"text": " ".join(record.words)},
        "qa": lambda: {"question": record.question, "context": record.context},
        "choice": lambda: {"sent1": record.prompt, "sent2": "", **{f"ending{i}": o for i, o in enumerate(record.options)}},
    }.get(name, lambda: {"text": record.text} | ({"pair": record.pair} if record.pair and name != "similarity" else {}))()
    return {"id": str(number), **told, "note": 'ä "quoted" word, and more'}


def write(rows, path):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        how = {} if path.suffix == ".csv" else dict(delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)
        with open(path, "w", newline="") as stream:
            csv.writer(stream, **how).writerows([list(rows[0]), *(list(row.values()) for row in rows)])
    return path


def read(path):
    """Rows with every cell as Python has it."""
    if path.suffix == ".parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        how = {} if path.suffix == ".csv" else dict(delimiter="\t", quoting=csv.QUOTE_NONE)
        with open(path, newline="") as stream:
            rows = list(csv.DictReader(stream, **how))
    return [{k: parsed(v) if k.startswith("predicted_") else v for k, v in row.items()} for row in rows]


def parsed(value):
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def sentences(count, tmp_path, ending=".csv", name="in"):
    rows = [{"id": str(i), "text": " ".join(SENTENCES[(i + k) % 16] for k in range(1 + i % 4))} for i in range(count)]
    return write(rows, tmp_path / f"{name}{ending}")


def own(model, name, rows):
    """What the model's own methods say, as the columns should."""
    texts = [row.get("text") for row in rows]
    if name in ("classification", "regression", "multilabel"):
        found = model.classify(texts, [row["pair"] for row in rows] if "pair" in rows[0] else None)
        if name == "regression":
            return [{"number": one} for one in found]
        if name == "multilabel":
            return [dict(labels=list(one.labels), probabilities=one.probabilities) for one in found]
        return [dict(label=one.label, probability=one.probability) for one in found]
    if name == "tagging":
        return [{"entities": [entity._asdict() for entity in found]} for found in model.tag(texts)]
    if name == "qa":
        found = model.ask([row["question"] for row in rows], [row["context"] for row in rows])
        names = dict(begin=1, end=2, probability=3, null_margin=5)
        told = [{n: one[i] for n, i in names.items()} | {"answer": one.text} for one in found]
        return [a | {"best": [span._asdict() for span in one.best]} for a, one in zip(told, found, strict=True)]
    if name == "choice":
        options = [[row[f"ending{i}"] for i in range(3)] for row in rows]
        found = [model.choose(row["sent1"], several) for row, several in zip(rows, options, strict=True)]
        return [one._asdict() for one in found]
    return [{"embedding": vector.tolist()} for vector in model.embed(texts)]


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == pytest.approx(other, abs=2e-5) if isinstance(one, float) else one == other


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("name", TASKS)
def test_every_task_over_every_format(name, ending, models, tmp_path):
    rows = [row_of(record, name, number) for number, record in enumerate(RECORDS[name])]
    facts = bertkit.predict(models / name, write(rows, tmp_path / f"in{ending}"), tmp_path / f"out{ending}", device="cpu")
    found = read(tmp_path / f"out{ending}")
    assert (facts["rows"], facts["bad"], facts["resumed"]) == (len(rows), 0, 0)
    assert [{k: v for k, v in row.items() if not k.startswith("predicted_")} for row in found] == rows
    answers = [{k[10:]: v for k, v in row.items() if k.startswith("predicted_")} for row in found]
    assert close(answers, own(bertkit.load(models / name, device="cpu"), name, rows))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([f"in{ending}", f"out{ending}"])


def test_a_model_without_a_task_embeds(model, tmp_path):
    model.save(tmp_path / "m")
    data = sentences(12, tmp_path, ".jsonl")
    bertkit.predict(tmp_path / "m", data, tmp_path / "out.jsonl", device="cpu")
    found = read(tmp_path / "out.jsonl")
    assert close([row["predicted_embedding"] for row in found], model.embed([row["text"] for row in found]).tolist())


def test_all_classes_have_their_probability(models, tmp_path):
    data = sentences(7, tmp_path)
    bertkit.predict(models / "classification", data, tmp_path / "out.csv", all_classes=True)
    for row in read(tmp_path / "out.csv"):
        assert row["predicted_probability_even"] + row["predicted_probability_odd"] == pytest.approx(1, abs=1e-5)
        assert row[f"predicted_probability_{row['predicted_label']}"] == row["predicted_probability"]


def test_words_that_were_given_stay_words(models, tmp_path):
    rows = [{"words": list(record.words), "document": record.document} for record in RECORDS["tagging"]]
    data = write([*rows, {"words": "the cat went"}], tmp_path / "in.jsonl")
    bertkit.predict(models / "tagging", data, tmp_path / "out.jsonl")
    found = read(tmp_path / "out.jsonl")
    assert any(row["predicted_entities"] for row in found)
    for row in found:
        text = " ".join(row["words"]) if isinstance(row["words"], list) else row["words"]
        for entity in row["predicted_entities"]:
            assert text[entity["begin"] : entity["end"]] == entity["text"]


@pytest.mark.parametrize(("name", "row"), [("classification", "text"), ("tagging", "text"), ("qa", "context")])
def test_long_texts_are_read_in_windows(name, row, tmp_path):
    model = save_model(name, tmp_path / "m", stride=8)
    long = " ".join(SENTENCES)
    data = write([{"question": "where ?", "context": long} if name == "qa" else {row: long}], tmp_path / "in.jsonl")
    bertkit.predict(model, data, tmp_path / "out.jsonl", device="cpu")
    (answer,) = read(tmp_path / "out.jsonl")
    loaded = bertkit.load(model, device="cpu")
    asked = {"classification": lambda: loaded.classify(long).probability, "tagging": lambda: loaded.tag(long)[-1].end}
    told = {"classification": lambda: answer["predicted_probability"]} | {
        "tagging": lambda: answer["predicted_entities"][-1]["end"]
    }
    assert told.get(name, lambda: answer["predicted_begin"])() == pytest.approx(
        asked.get(name, lambda: loaded.ask("where ?", long).begin)(), abs=1e-5
    )


SLOW = """
import sys, time, torch
from bertkit.serve import files
torch.set_num_threads(1)
files.CHUNK = 50
real = files._write
files._write = lambda *given: time.sleep(0.03) or real(*given)
files.predict_file(*sys.argv[1:4], bad="skip", device="cpu")
"""


def test_killed_three_times_it_ends_with_the_same_bytes(models, tmp_path):
    data = sentences(1500, tmp_path)
    lines = data.read_text().splitlines()
    lines[300:300] = ["a,b,c,d", "e", "900, "]
    data.write_text("\n".join(lines) + "\n")
    whole, broken = tmp_path / "whole.csv", tmp_path / "broken.csv"
    command = [sys.executable, "-c", SLOW, str(models / "classification"), str(data)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(whole)], check=True, env=environment)
    draw, parts = random.Random(0), Path(f"{broken}.parts")
    for _ in range(3):
        before = len(list(parts.glob("*.part")))
        child = subprocess.Popen([*command, str(broken)], env=environment)
        while len(list(parts.glob("*.part"))) == before and child.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.2)
        assert child.poll() is None
        child.kill()
        child.wait()
    assert not broken.exists()
    subprocess.run([*command, str(broken)], check=True, env=environment)
    assert broken.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts"))
    assert Path(f"{broken}.bad.jsonl").read_bytes() == Path(f"{whole}.bad.jsonl").read_bytes()
    assert [row["id"] for row in read(broken)] == [str(number) for number in range(1500)]
    assert [row["row"] for row in read(Path(f"{whole}.bad.jsonl"))] == ["a,b,c,d", "e", {"id": "900", "text": " "}]


class Stop(Exception):
    pass


def stopped(home, moment, model, data, out, monkeypatch, call=1):
    """A run that ends with an exception at a moment's n-th call."""
    real, calls = getattr(home, moment), []

    def stopping(*given, **more):
        calls.append(more)
        if len(calls) == call:
            raise Stop
        return real(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(home, moment, stopping)
        with pytest.raises(Stop):
            bertkit.predict(model, data, out)


MOMENTS = [(files, "_write", 3, 10), (files, "_finish", 1, 23), (files, "_join", 1, 23), (files.shutil, "rmtree", 1, 23)]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(("home", "moment", "call", "resumed"), MOMENTS, ids=lambda value: str(value)[:8])
def test_a_stopped_run_goes_on(home, moment, call, resumed, ending, models, tmp_path, monkeypatch):
    data, model, out = sentences(23, tmp_path, ending), models / "classification", tmp_path / f"out{ending}"
    bertkit.predict(model, data, tmp_path / f"whole{ending}")
    stopped(home, moment, model, data, out, monkeypatch, call)
    facts = bertkit.predict(model, data, out)
    assert (facts["resumed"], facts["rows"]) == (resumed, 23)
    assert out.read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("fresh", [False, True])
def test_two_runs_do_not_write_to_one_place(fresh, models, tmp_path, monkeypatch):
    data, model, out = sentences(12, tmp_path), models / "classification", tmp_path / "out.csv"
    real, refused = files._write, []

    def meet(*given):
        with pytest.raises(InputError, match=r"another run writes to .*out.csv.parts; wait for it"):
            bertkit.predict(model, data, out, fresh=fresh)
        refused.append(given)
        real(*given)

    monkeypatch.setattr(files, "_write", meet)
    assert bertkit.predict(model, data, out)["rows"] == len(read(out)) == 12
    assert len(refused) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_lost_parts_are_not_passed_over(models, tmp_path, monkeypatch):
    data, out = sentences(12, tmp_path), tmp_path / "out.csv"
    real, parts = files._finish, tmp_path / "out.csv.parts"
    monkeypatch.setattr(files, "_finish", lambda *given: (parts / "00000001.part").unlink() or real(*given))
    with pytest.raises(InputError, match=r"out.csv.parts lost parts, or holds those of another run; --fresh starts over"):
        bertkit.predict(models / "classification", data, out)
    assert not out.exists()
    monkeypatch.undo()
    assert bertkit.predict(models / "classification", data, out, fresh=True)["rows"] == 12


CHANGES = {
    "input size, input time, input head": lambda data: data.write_text(data.read_text() + "99,the cat\n"),
    "input time": lambda data: os.utime(data, (1, 1)),
    "answers": lambda data: {"all_classes": True},
    "text": lambda data: {"columns": {"text": "id"}},
    "precision": lambda data: {"precision": "bf16"},
    "chunk": lambda data: setattr(files, "CHUNK", 6),
}


@pytest.mark.parametrize("fields", CHANGES)
def test_changes_are_refused_and_named(fields, models, tmp_path, monkeypatch):
    data, out = sentences(12, tmp_path), tmp_path / "out.csv"
    stopped(files, "_finish", models / "classification", data, out, monkeypatch)
    change = CHANGES[fields](data)
    options = change if isinstance(change, dict) else {}
    with pytest.raises(InputError, match=f"was made with another {fields};.*--fresh"):
        bertkit.predict(models / "classification", data, out, **options)
    (settings,) = tmp_path.glob("**/settings.json")
    settings.write_text("{")
    with pytest.raises(InputError, match=r"settings.json: not readable as JSON"):
        bertkit.predict(models / "classification", data, out, **options)
    bertkit.predict(models / "classification", data, out, fresh=True, **options)
    assert len(read(out)) >= 12


def test_another_model_is_refused(models, tmp_path, monkeypatch):
    data, out = sentences(12, tmp_path), tmp_path / "out.csv"
    stopped(files, "_finish", models / "classification", data, out, monkeypatch)
    with pytest.raises(InputError, match="another model"):
        bertkit.predict(save_model("classification", tmp_path / "m", temperature=2.0), data, out)


def test_what_is_done_is_not_overwritten_unasked(models, tmp_path):
    data, out = sentences(3, tmp_path), tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(InputError, match=r"exists; give another --out, or --fresh"):
        bertkit.predict(models / "classification", data, out)
    assert out.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [data, out]


BAD_CSV = "text,n\nthe cat,1\nthe dog\n ,3\nthe cow,4\nthe,fish,5\nthe duck,6\nthe \0,7\nthe horse,8\n"
BAD_JSON = '{"text": "the cat"}\n{"text": 5}\nno json\n[1]\n{"other": 1}\n{"text": "the dog"}\n{"text": "\\u200b"}\n'


@pytest.mark.parametrize(
    ("content", "ending", "name", "good", "lines"),
    [
        (BAD_CSV, ".csv", "classification", [2, 5, 7, 9], [3, 4, 6, 8]),
        (BAD_CSV.replace(",", "\t"), ".tsv", "classification", [2, 5, 7, 9], [3, 4, 6, 8]),
        (BAD_JSON, ".jsonl", "similarity", [1, 6], [2, 3, 4, 5, 7]),
        (BAD_JSON, ".jsonl", "tagging", [1, 6], [2, 3, 4, 5, 7]),
        ('{"prompt": "a", "options": []}\n{"prompt": "the", "options": ["cat", "dog"]}\n', ".jsonl", "choice", [2], [1]),
    ],
)
def test_bad_rows_stop_or_are_kept_aside(content, ending, name, good, lines, models, tmp_path):
    data, out = tmp_path / f"in{ending}", tmp_path / f"out{ending}"
    data.write_text(content)
    with pytest.raises(DataError, match=rf"in{ending}:{lines[0]}: .*--bad skip"):
        bertkit.predict(models / name, data, out)
    facts = bertkit.predict(models / name, data, out, bad="skip")
    assert (facts["rows"], facts["bad"]) == (len(good), len(lines))
    assert len(read(out)) == len(good)
    kept = [json.loads(line) for line in Path(f"{out}.bad.jsonl").read_text().splitlines()]
    assert [one["line"] for one in kept] == lines
    assert all(one["reason"] and one["row"] for one in kept)
    bertkit.predict(models / name, data, out, bad="skip", fresh=True)
    assert [json.loads(line) for line in Path(f"{out}.bad.jsonl").read_text().splitlines()] == kept


def test_bad_rows_of_several_lines_are_kept_whole(models, tmp_path):
    data, out = tmp_path / "in.csv", tmp_path / "out.csv"
    data.write_text('text,n\nthe cat,1\n"never, closed\r\nthe one,3\nfour "x",5\n"the\n\ndog",2,3\n"a\ncow",4\n5\nit,6\n')
    facts = bertkit.predict(models / "classification", data, out, bad="skip")
    assert (facts["rows"], [row["n"] for row in read(out)]) == (3, ["1", "4", "6"])
    kept = [(row["line"], row["row"]) for row in read(Path(f"{out}.bad.jsonl"))]
    assert kept == [(3, '"never, closed\r\nthe one,3\nfour "x",5'), (6, '"the\n\ndog",2,3'), (11, "5")]


def test_a_link_stays_and_leads_to_the_answers(models, tmp_path):
    link, data = tmp_path / "link.csv", sentences(3, tmp_path)
    link.symlink_to(tmp_path / "far" / "out.csv")
    bertkit.predict(models / "classification", data, link)
    assert link.is_symlink()
    assert len(read(tmp_path / "far" / "out.csv")) == 3
    assert sorted(tmp_path.iterdir()) == [tmp_path / "far", data, link]


def test_bytes_that_nobody_reads_stay(models, tmp_path):
    data = tmp_path / "in.csv"
    data.write_bytes(b'text,note\nthe cat,\xff\nthe dog,"a\r\nb"\n')
    bertkit.predict(models / "regression", data, tmp_path / "out.csv")
    assert b"\nthe cat,\xff," in (tmp_path / "out.csv").read_bytes()
    assert b'\nthe dog,"a\r\nb",' in (tmp_path / "out.csv").read_bytes()


WRONG = [
    ({"data": "in.txt"}, "expected a file that ends in .csv"),
    ({"out": "out.jsonl"}, "expected a name that ends in .csv"),
    ({"engine": "spark"}, "engine 'spark'"),
    ({"workers": 0}, "0 workers"),
    ({"bad": "keep"}, "bad 'keep'"),
    ({"columns": {"text": "txt"}}, 'no column "txt" .did you mean "text"'),
    ({"name": "tagging", "columns": {"pair": "id"}}, "reads one text a row"),
    ({"name": "qa"}, "no usual pair column"),
    ({"data": "none.csv"}, "no such file; expected a file that ends in .csv"),
    ({"out": "in.csv", "fresh": True}, "is the input; expected a file to write"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_settings_get_one_clear_line(change, message, models, tmp_path):
    given = dict(name="classification", data="in.csv", out="out.csv") | change
    sentences(3, tmp_path)
    name, data, out = (given.pop(key) for key in ("name", "data", "out"))
    with pytest.raises((InputError, DataError), match=message):
        bertkit.predict(models / name, tmp_path / data, tmp_path / out, **given)


def test_an_empty_file_and_a_taken_column_are_refused(models, tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(DataError, match="no usable rows"):
        bertkit.predict(models / "classification", tmp_path / "a.csv", tmp_path / "out.csv")
    (tmp_path / "b.csv").write_text("text,predicted_label\nthe cat,x\n")
    with pytest.raises(DataError, match='"predicted_label" is there already'):
        bertkit.predict(models / "classification", tmp_path / "b.csv", tmp_path / "out.csv")


def test_no_more_than_a_few_chunks_are_alive(models, tmp_path, monkeypatch):
    alive, most = set(), []
    real = files.read_rows

    class Seen(dict):
        pass

    def watched(table):
        for line, row in real(table):
            seen = Seen(row)
            alive.add(line)
            weakref.finalize(seen, alive.discard, line)
            most.append(len(alive))
            yield line, seen

    monkeypatch.setattr(files, "read_rows", watched)
    bertkit.predict(models / "classification", sentences(300, tmp_path), tmp_path / "out.csv")
    assert len(most) == 301  # the first row is looked at for its columns
    assert max(most) <= 2 * files.CHUNK + 1


def test_workers_do_not_change_a_byte(models, tmp_path):
    data = sentences(64, tmp_path)
    for workers in (1, 2):
        bertkit.predict(models / "tagging", data, tmp_path / f"{workers}.csv", workers=workers)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_file_bit_for_bit(models, tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        for ending in (".csv", ".parquet"):
            data = sentences(64, tmp_path, ending)
            for engine in ("local", "ray"):
                told = dict(engine=engine, workers=2 if engine == "ray" else 1)
                bertkit.predict(models / "classification", data, tmp_path / f"{engine}{ending}", **told)
            assert (tmp_path / f"local{ending}").read_bytes() == (tmp_path / f"ray{ending}").read_bytes()
    finally:
        ray.shutdown()
        nodes.shutdown()


def test_the_verb(models, tmp_path):
    data = sentences(12, tmp_path)
    data.write_text(data.read_text() + "x,y,z\n")
    command = ["predict", str(models / "classification"), str(data), "--out", str(tmp_path / "out.csv"), "--text", "text"]
    done = CliRunner().invoke(app, [*command, "--bad", "skip", "--all", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout).items() >= {"rows": 12, "bad": 1, "resumed": 0}.items()
    done = CliRunner().invoke(app, [*command, "--bad", "skip", "--fresh", "--device", "cpu"])
    assert done.stdout.startswith("12 rows in ")
    assert "1 bad rows were kept aside in" in done.stdout


def test_a_carriage_return_stays_in_its_cell(models, tmp_path):
    data, out = tmp_path / "in.csv", tmp_path / "out.csv"
    data.write_bytes(b'text,id\n"the cat\rwent",1\nthe dog,2\n')
    bertkit.predict(models / "regression", data, out)
    assert out.read_bytes().startswith(b'text,id,predicted_number\n"the cat\rwent",1,')
    assert [row["id"] for row in read(out)] == ["1", "2"]


def test_semicolons_stay_semicolons(models, tmp_path):
    (tmp_path / "in.csv").write_text('text;note\nshe likes bread;"1,5; more"\n')
    bertkit.predict(models / "classification", tmp_path / "in.csv", tmp_path / "out.csv")
    head, row = (tmp_path / "out.csv").read_text().splitlines()
    assert head == "text;note;predicted_label;predicted_probability"
    assert row.startswith('she likes bread;"1,5; more";')


def test_a_row_that_has_the_answer_s_column_is_bad(models, tmp_path):
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "the cat"}\n{"text": "the dog", "predicted_label": "mine"}\n')
    with pytest.raises(DataError, match='2: the column "predicted_label" is there already'):
        bertkit.predict(models / "classification", data, tmp_path / "out.jsonl")


def test_what_failed_at_once_may_be_mended(models, tmp_path):
    data, out = tmp_path / "in.csv", tmp_path / "out.csv"
    data.write_text("text\nthe cat\n \n")
    with pytest.raises(DataError, match=":3: "):
        bertkit.predict(models / "classification", data, out)
    data.write_text("text\nthe cat\nthe dog\n")
    assert bertkit.predict(models / "classification", data, out)["rows"] == 2


def test_a_label_that_no_cell_of_a_tsv_holds(tmp_path):
    model = save_model("classification", tmp_path / "m", labels=("even\tone", "odd"))
    (tmp_path / "in.tsv").write_text("text\nthe cat\n")
    with pytest.raises(InputError, match="does not fit into a cell of a"):
        bertkit.predict(model, tmp_path / "in.tsv", tmp_path / "out.tsv")
