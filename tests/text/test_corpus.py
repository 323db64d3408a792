import gzip
import json
import lzma

import pytest

from bertkit.data.prepare import prepare_store
from bertkit.errors import DataError, InputError
from bertkit.text.corpus import Corpus

TEXTS = ["first line\nsecond line", "another document", "ünïcode 中文 😀"]


def texts(*paths, **options):
    return [document.text for document in Corpus(paths, **options)]


def write(path, content: bytes):
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".xz":
        content = lzma.compress(content)
    elif path.suffix == ".zst":
        content = pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def content(kind, tmp_path):
    if kind == ".txt":
        return "\n\n".join(TEXTS).encode()
    if kind == ".jsonl":
        return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS).encode()
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": TEXTS, "id": [1, 2, 3]}), tmp_path / "p")
    return (tmp_path / "p").read_bytes()


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_every_kind_in_every_packing(tmp_path, kind, packing):
    file = write(tmp_path / f"corpus{kind}{packing}", content(kind, tmp_path))
    corpus = Corpus([file])
    assert [document.text for document in corpus] == TEXTS
    assert corpus.position == corpus.size == file.stat().st_size
    assert [document.text for document in corpus] == TEXTS, "a corpus can be read again"


def test_folders_are_read_in_sorted_order(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "a.txt", "b/x.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "notes.md").write_text("no corpus")
    assert texts(tmp_path) == ["a.txt", "b/x.txt", "c.txt"]
    assert texts(tmp_path / "c.txt", tmp_path / "a.txt") == ["c.txt", "a.txt"]


def test_documents_know_their_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n\r\n \r\nthree\r\n".encode())
    assert [(d.text, d.line) for d in Corpus([tmp_path / "a.txt"])] == [("one\ntwo", 1), ("three", 5)]


BAD = {
    "utf-8": (b"fine\n\nbad \xff byte\n\nfine too\n", "byte 0xff at column 5 is not UTF-8"),
    "nul": (b"fine\n\na \0 NUL\n\nfine too\n", "NUL"),
    "long": (b"fine\n\n" + b"x" * 10_000_000 + b"\n\nfine too\n", "too long: expected at most 8,388,608 bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_stop_with_file_and_line_or_are_skipped(tmp_path, case):
    raw, message = BAD[case]
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(DataError, match=rf"a\.txt:3: .*{message}.*--bad skip"):
        texts(tmp_path)
    corpus = Corpus([tmp_path], bad="skip")
    assert [document.text for document in corpus] == ["fine", "fine too"]
    assert corpus.skipped == 1
    assert message in corpus.complaints[0]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"txt": "a"}', '{"text": 3}', '{"text": "\\u0000"}', '{"text": "\\ud800"}', "[" * 100_000]
)
def test_bad_json_stops_with_its_line_or_is_skipped(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n\n{line}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:3: "):
        texts(tmp_path)
    assert texts(tmp_path, bad="skip") == ["fine"]


def test_a_document_without_end_comes_in_parts(tmp_path):
    (tmp_path / "a.txt").write_text("word\n" * 1000)
    parts = texts(tmp_path, max_line=100)
    assert len(parts) > 10
    assert "\n".join(parts) == "\n".join(["word"] * 1000)
    assert max(map(len, parts)) < 200


@pytest.mark.parametrize("packing", [".gz", ".xz", ".zst"])
def test_a_cut_off_file_is_named(tmp_path, packing):
    file = write(tmp_path / f"a.txt{packing}", "".join(f"line {i}\n\n" for i in range(20_000)).encode())
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="damaged or cut off"):
        texts(file)
    for left in [b"not compressed"] if packing == ".gz" else [b"not compressed", b""]:
        file.write_bytes(left)
        with pytest.raises(DataError, match="damaged or cut off"):
            texts(file)


def test_a_packing_of_several_frames_is_read_whole(tmp_path):
    frames = [pytest.importorskip("pyarrow").compress(part, codec="zstd", asbytes=True) for part in (b"one\n", b"two\n")]
    (tmp_path / "a.txt.zst").write_bytes(b"".join(frames))
    assert texts(tmp_path) == ["one\ntwo"]


def test_what_is_no_corpus_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Corpus([tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"holds no \.txt"):
        Corpus([tmp_path])
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(DataError, match=r"expected \.txt"):
        Corpus([tmp_path / "a.pdf"])
    with pytest.raises(InputError, match="stop"):
        Corpus([tmp_path], bad="ignore")
    for wrong in (dict(paths="a.txt"), dict(paths=[]), dict(paths=[tmp_path], max_line=0)):
        with pytest.raises(InputError, match="expected a list of files and folders, one at least, and 1 byte at least"):
            Corpus(**wrong)


def test_parquet_faults_are_named(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"body": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match='no column "text"; found body'):
        texts(tmp_path / "a.parquet")
    parquet.write_table(arrow.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet:2: .*NoneType"):
        texts(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"junk")
    with pytest.raises(DataError, match="not a readable parquet"):
        texts(tmp_path / "a.parquet")


def test_links_are_followed_but_for_those_that_lead_back(tmp_path):
    for folder in ("c", "elsewhere/d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "c" / "z.txt").write_text("z")
    (tmp_path / "elsewhere" / "d" / "x.txt").write_text("x")
    (tmp_path / "c" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "c" / "back").symlink_to(tmp_path)
    assert texts(tmp_path / "c") == ["x", "z"]


def test_endings_may_be_in_capitals(tmp_path):
    write(tmp_path / "A.TXT", b"a")
    write(tmp_path / "b.gz", b"b").rename(tmp_path / "B.Txt.GZ")
    assert texts(tmp_path) == ["a", "b"]


def test_tokenizers_and_stores_within_a_folder_are_no_corpus(tmp_path, tokenizer):
    write(tmp_path / "a.txt", b"a b c")
    prepare_store(Corpus([tmp_path]), tokenizer, tmp_path / "store", min_words=2)
    tokenizer.save(tmp_path / "deep" / "tokenizer")
    write(tmp_path / "deep" / "b.txt", b"b")
    assert texts(tmp_path) == ["a b c", "b"]
    assert len(texts(tmp_path / "deep" / "tokenizer")) == 1  # unless it is named
