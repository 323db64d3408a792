import shutil
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoint_writer import variables, write_checkpoint, write_google_folder

import bertkit
from bertkit.bundle.google import SLOTS, find_checkpoint, hugging_face_name, read_checkpoint, read_index
from bertkit.errors import ArtifactError, BertkitError


@pytest.fixture
def folder(tmp_path):
    write_google_folder(tmp_path)
    return tmp_path


def test_what_is_written_is_read(folder):
    expected = variables()
    assert set(read_index(folder / "bert_model.ckpt")[0]) == set(expected)
    found = read_checkpoint(folder / "bert_model.ckpt")
    kept = {name: values.T if name.endswith("kernel") else values for name, values in expected.items()}
    kept = {hugging_face_name(name): values for name, values in kept.items() if not SLOTS.search(name)}
    assert set(found) == set(kept)
    assert all(np.array_equal(values, kept[name]) for name, values in found.items())


def test_a_google_folder_loads_and_answers_like_transformers(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = bertkit.load(folder)
    assert model.describe()["parameters"]["total"] == sum(v.size for n, v in variables().items() if not SLOTS.search(n))
    model.save(tmp_path / "converted")
    theirs, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "converted", output_loading_info=True)
    assert not any(report.values())
    kernel = variables()["bert/encoder/layer_1/intermediate/dense/kernel"]
    assert torch.equal(theirs.bert.encoder.layer[1].intermediate.dense.weight, torch.from_numpy(kernel).T)
    ids = model.tokenizer.encode("all work and no play").ids
    with torch.no_grad():
        expected = theirs.bert(torch.tensor(ids[None]).long()).last_hidden_state[0]
    np.testing.assert_allclose(model.encode([ids])[0], expected, atol=2e-5)


def test_it_is_found_by_folder_name_and_index(folder):
    name = folder / "bert_model.ckpt"
    assert find_checkpoint(folder) == find_checkpoint(name) == find_checkpoint(folder / "bert_model.ckpt.index") == name
    assert bertkit.load(name).config.layers == 2
    write_checkpoint(folder / "model.ckpt-5", variables())
    with pytest.raises(ArtifactError, match=r"several checkpoints here \(bert_model.ckpt, model.ckpt-5\)"):
        bertkit.load(folder)
    assert bertkit.load(folder / "model.ckpt-5").config.layers == 2


TENSORS = {
    "a/kernel": np.arange(6, dtype="<f4").reshape(2, 3),
    "b": np.arange(4, dtype="<f4"),
    "c/adam_m": np.ones(3, "<f4"),
}


def test_every_bit_of_the_index_counts(tmp_path):
    write_checkpoint(tmp_path / "x.ckpt", TENSORS, rows_per_block=2)
    file = tmp_path / "x.ckpt.index"
    content = file.read_bytes()
    for place, bit in product(range(len(content)), range(8)):
        file.write_bytes(bytes([*content[:place], content[place] ^ 1 << bit, *content[place + 1 :]]))
        with pytest.raises(ArtifactError, match="fetch the file again"):
            read_checkpoint(tmp_path / "x.ckpt")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), ending=st.sampled_from(["index", "data-00000-of-00001"]))
def test_a_flipped_bit_is_refused(tmp_path_factory, data, ending):
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    write_checkpoint(folder / "x.ckpt", TENSORS, rows_per_block=2)
    file = folder / f"x.ckpt.{ending}"
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="fetch the file again"):
        read_checkpoint(folder / "x.ckpt")
    file.write_bytes(content[:place])
    with pytest.raises(ArtifactError):
        read_checkpoint(folder / "x.ckpt")


def test_what_is_missing_or_left_over_is_named(folder, caplog):
    tensors = variables()
    kernel = tensors.pop("bert/encoder/layer_0/output/dense/kernel")
    write_checkpoint(folder / "bert_model.ckpt", tensors)
    with pytest.raises(ArtifactError, match=r"missing bert\.encoder\.layer\.0\.output\.dense\.weight"):
        bertkit.load(folder)
    tensors |= {"bert/encoder/layer_0/output/dense/kernel": kernel, "output_weights": np.ones((2, 8), "<f4")}
    write_checkpoint(folder / "bert_model.ckpt", tensors)
    bertkit.load(folder)
    assert "left over, not part of this model: output_weights" in caplog.text


def test_missing_data_and_other_kinds_are_named(folder):
    (folder / "bert_model.ckpt.data-00000-of-00001").unlink()
    with pytest.raises(ArtifactError, match="weights are missing"):
        bertkit.load(folder)
    write_checkpoint(folder / "bert_model.ckpt", {"a": np.array([1, 2], "<i8")})
    with pytest.raises(BertkitError, match=r"missing bert\.embeddings\.word_embeddings\.weight"):
        bertkit.load(folder)


def test_the_published_fixture_reads(data, tmp_path):
    source = data / "weights" / "tf1-fixture"
    assert len(read_index(source / "bert_model.ckpt")[0]) == 139
    model = bertkit.load(source)
    assert model.answers() == ["embed", "features", "fill", "next"]
    assert model.fill("all work and no [MASK] makes jack a dull boy")[0][0].probability < 0.2
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        shutil.copytree(source, tmp_path / name)
        file = tmp_path / name / name
        file.chmod(0o644)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match="fetch the file again"):
            bertkit.load(tmp_path / name)


def test_the_published_medium_index_lists(data):
    entries, _ = read_index(data / "weights" / "tf1-index-medium" / "bert_model.ckpt")
    assert len(entries) == 142
    assert entries["bert/embeddings/word_embeddings"].shape == (30_522, 512)
    assert sum(entry.size for entry in entries.values()) == 166_673_648
