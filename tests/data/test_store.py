import json

import numpy as np
import pytest

from bertkit.data.store import Piece, Store, write_manifest, write_shard
from bertkit.errors import DataError


@pytest.fixture
def folder(tmp_path, tokenizer):
    """Two shards: documents of 2 + 1 sentences, then of 1."""
    (tmp_path / "tokenizer").mkdir()
    tokenizer.write_files(tmp_path / "tokenizer")
    ids = np.arange(10, dtype=np.uint16)
    first = [Piece(ids[:5], np.array([2, 3]), np.array([2])), Piece(ids[5:7], np.array([2]), np.array([1]))]
    shards = [write_shard(tmp_path, 0, first), write_shard(tmp_path, 1, [Piece(ids[7:], np.array([3]), np.array([1]))])]
    write_manifest(tmp_path, shards, np.dtype(np.uint16), {"settings": {}})
    return tmp_path


def test_what_is_written_is_read(folder, tokenizer):
    store = Store(folder)
    assert (store.tokens, store.documents) == (10, 3)
    assert store.sentence_bounds.tolist() == [0, 2, 5, 7, 10]
    assert store.document_bounds.tolist() == [0, 2, 3, 4]
    assert store.ids_at(np.array([[9, 0], [6, 7]])).tolist() == [[9, 0], [6, 7]]
    assert store.tokenizer.vocabulary == tokenizer.vocabulary
    told = store.describe()
    assert [told[name] for name in ("tokens", "sentences", "documents", "shards")] == [10, 4, 3, 2]
    assert told["checksums"] == "right"
    assert store.unknown == told["unknown"] == 0.1


def test_damage_is_named(folder):
    file = folder / "00001.ids"
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DataError, match=r"00001\.ids: the file fails its checksum"):
        Store(folder).describe()
    file.write_bytes(content[:-2])
    with pytest.raises(DataError, match="has 4 bytes, the manifest says 6"):
        Store(folder)
    file.unlink()
    with pytest.raises(DataError, match="has None bytes"):
        Store(folder)


def test_manifests_are_checked(folder, tmp_path):
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(DataError, match="store format 99"):
        Store(folder)
    for bad in ("{", "[]", json.dumps({"shards": [{}]})):
        manifest.write_text(bad)
        with pytest.raises(DataError, match="the manifest is damaged"):
            Store(folder)
    with pytest.raises(DataError, match="no finished store here"):
        Store(tmp_path / "nowhere")


def test_another_tokenizer_is_refused(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"settings": {"tokenizer": "0" * 64}}))
    with pytest.raises(DataError, match="not the one that the store was made with"):
        _ = Store(folder).tokenizer
