import hashlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from support.stories import stories

from bertkit.data import prepare
from bertkit.data.prepare import prepare_store
from bertkit.errors import ConfigError, DataError, InputError
from bertkit.text.corpus import Corpus
from bertkit.text.sentences import split_sentences
from bertkit.text.vocabulary import learn_vocabulary


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "UNIT", 2000)
    texts = [text.replace("\n", " ") for text in stories(60)]
    texts[10] = "too short"
    texts[20] = texts[5].replace(" ", "  ")
    texts[21] = texts[5]
    texts[30] = "\x01 \x02"
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    return Corpus([tmp_path / "corpus.txt"])


def fingerprint(folder: Path) -> str:
    """Every file's name and content."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}:{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def test_the_store_holds_the_corpus(corpus, tokenizer, tmp_path):
    store = prepare_store(corpus, tokenizer, tmp_path / "s", shard_tokens=2000)
    assert len(store.shards) > 2
    assert store.documents == 59
    assert store.dtype == np.uint16
    assert store.manifest["dropped"] == {"empty": 1, "bad lines": 0}
    assert store.describe()["checksums"] == "right"
    documents = [document.text for document in corpus if document.text != "\x01 \x02"]
    expected = [sentence for document in documents for sentence in split_sentences(document)]
    bounds = store.sentence_bounds
    assert len(bounds) - 1 == len(expected)
    for index in range(0, len(expected), 17):
        ids = store.ids_at(np.arange(bounds[index], bounds[index + 1]))
        assert ids.tolist() == tokenizer.pieces([expected[index]])[0].ids.tolist()
    sentences = np.diff(store.document_bounds)
    assert sentences.tolist() == [len(split_sentences(document)) for document in documents]


def test_workers_do_not_change_a_bit(corpus, tokenizer, tmp_path):
    for workers in (1, 3):
        prepare_store(corpus, tokenizer, tmp_path / f"s{workers}", workers=workers, shard_tokens=2000)
    assert fingerprint(tmp_path / "s1") == fingerprint(tmp_path / "s3")


def test_short_and_repeated_documents_are_dropped(corpus, tokenizer, tmp_path):
    store = prepare_store(corpus, tokenizer, tmp_path / "s", min_words=3, deduplicate=True)
    assert store.manifest["dropped"] == {"short": 2, "duplicate": 2, "bad lines": 0}
    listed = [json.loads(line) for line in (tmp_path / "s" / "dropped.jsonl").read_text().splitlines()]
    assert sorted(one["reason"] for one in listed) == ["duplicate", "duplicate", "short", "short"]
    assert {one["begins"] for one in listed if one["reason"] == "short"} >= {"too short"}
    assert all(":" in one["place"] for one in listed)
    assert store.documents == 56


class Stop(Exception):
    pass


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_a_stopped_run_goes_on(corpus, tokenizer, tmp_path, monkeypatch, shards):
    cleaning = dict(min_words=3, deduplicate=True)
    whole = prepare_store(corpus, tokenizer, tmp_path / "whole", shard_tokens=2000, **cleaning)
    real = prepare.write_shard

    def stopping(folder, index, pieces):
        if index == shards:
            raise Stop
        return real(folder, index, pieces)

    monkeypatch.setattr(prepare, "write_shard", stopping)
    with pytest.raises(Stop):
        prepare_store(corpus, tokenizer, tmp_path / "s", shard_tokens=2000, **cleaning)
    assert not (tmp_path / "s" / "manifest.json").exists()
    (tmp_path / "s" / ".hashes.0123456789abcdef").mkdir()  # of a run that was killed
    written = []
    monkeypatch.setattr(prepare, "write_shard", lambda f, i, p: written.append(i) or real(f, i, p))
    prepare_store(corpus, tokenizer, tmp_path / "s", shard_tokens=2000, **cleaning)
    assert written == list(range(shards, len(whole.shards)))
    assert fingerprint(tmp_path / "s") == fingerprint(tmp_path / "whole")


def test_two_runs_do_not_write_to_one_store(corpus, tokenizer, tmp_path, monkeypatch):
    real = prepare.write_shard

    def meet(*given):
        with pytest.raises(InputError, match=r"another run writes to .*s; wait for it"):
            prepare_store(corpus, tokenizer, tmp_path / "s", min_words=3)
        return real(*given)

    monkeypatch.setattr(prepare, "write_shard", meet)
    store = prepare_store(corpus, tokenizer, tmp_path / "s")
    assert store.manifest["settings"]["cleaning"]["min_words"] == 0 and len(store.shards) == 1


def run_slowly(corpus, tokenizer, out):
    real = prepare.write_shard
    prepare.UNIT = 2000
    prepare.write_shard = lambda *a: time.sleep(0.2) or real(*a)
    prepare_store(Corpus(corpus), tokenizer, out, shard_tokens=2000)


def test_a_killed_run_goes_on(corpus, tokenizer, tmp_path):
    whole = prepare_store(corpus, tokenizer, tmp_path / "whole", shard_tokens=2000)
    arguments = (corpus.files, tokenizer, tmp_path / "s")
    child = multiprocessing.get_context("fork").Process(target=run_slowly, args=arguments)
    child.start()
    progress = tmp_path / "s" / "progress.json"
    while not (progress.exists() and json.loads(progress.read_text())["shards"]):
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert len(whole.shards) > len(json.loads(progress.read_text())["shards"])
    prepare_store(corpus, tokenizer, tmp_path / "s", shard_tokens=2000)
    assert fingerprint(tmp_path / "s") == fingerprint(tmp_path / "whole")


def test_a_finished_store_is_left_alone_and_others_are_refused(corpus, tokenizer, tmp_path):
    prepare_store(corpus, tokenizer, tmp_path / "s")
    before = fingerprint(tmp_path / "s")
    prepare_store(corpus, tokenizer, tmp_path / "s")
    assert fingerprint(tmp_path / "s") == before
    with pytest.raises(DataError, match=r"other settings \(cleaning differ\)"):
        prepare_store(corpus, tokenizer, tmp_path / "s", min_words=5)
    with pytest.raises(DataError, match=r"other settings \(max_line differ\)"):
        prepare_store(Corpus(corpus.files, max_line=100), tokenizer, tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    with pytest.raises(DataError, match="not empty and holds no store"):
        prepare_store(corpus, tokenizer, tmp_path / "mine")
    (tmp_path / "mine" / "manifest.json").write_text('{"name": "of another program"}')
    with pytest.raises(DataError, match="not empty and holds no store"):
        prepare_store(corpus, tokenizer, tmp_path / "mine")
    (tmp_path / "mine" / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest\.json: not readable as JSON"):
        prepare_store(corpus, tokenizer, tmp_path / "mine")


def test_bad_arguments(corpus, tokenizer, tmp_path):
    with pytest.raises(InputError, match="engine is 'spark'"):
        prepare_store(corpus, tokenizer, tmp_path / "s", engine="spark")
    with pytest.raises(InputError, match="workers is 0"):
        prepare_store(corpus, tokenizer, tmp_path / "s", workers=0)
    (tmp_path / "bad.txt").write_bytes(b"\xff\n\xff\n")
    with pytest.raises(DataError, match=r"no document was left \(2 bad lines\)"):
        prepare_store(Corpus([tmp_path / "bad.txt"], bad="skip"), tokenizer, tmp_path / "bad")
    with pytest.raises(DataError, match="no document was left"):
        prepare_store(corpus, tokenizer, tmp_path / "s", min_words=10_000)
    assert prepare_store(corpus, tokenizer, tmp_path / "s").documents  # as nothing was stored, it is not in the way
    assert not (tmp_path / "nothing").exists()


def test_byte_level_sentences_know_the_space_before_them(corpus, tmp_path):
    tokenizer = learn_vocabulary(corpus, 400, kind="bpe").tokenizer
    for workers in (1, 2):
        store = prepare_store(corpus, tokenizer, tmp_path / f"s{workers}", workers=workers)
    assert fingerprint(tmp_path / "s1") == fingerprint(tmp_path / "s2")
    begin, end = store.sentence_bounds[store.document_bounds[3:5]]
    text = [document.text for document in corpus][3]
    assert store.ids_at(np.arange(begin, end)).tolist() == tokenizer.ids([" ".join(text.split())])[0]
