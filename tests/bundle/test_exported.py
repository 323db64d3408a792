"""Exported folders: run without torch, read nothing outside themselves, and say what they cannot do."""

import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from support.exports import bundle_of, exported
from support.protobuf_writer import field

import bertkit
from bertkit.bundle.bundle import save_bundle
from bertkit.bundle.exported import Exported, outside
from bertkit.data.engines import one_of_many
from bertkit.errors import ArtifactError, InputError, MissingExtra
from bertkit.serve.predictor import Model

ASKED = """
import sys
sys.modules["torch"] = None
import bertkit
from bertkit.cli import main
model = {name: bertkit.load(f"{name}") for name in ("classification", "tagging", "qa", "choice", "similarity", "first")}
print(model["classification"].classify(["the cat", "the dog went to the river ."]))
print(model["tagging"].tag("the cat went to the river ."))
print(model["qa"].ask("where did it go ?", "the cat went to the river ."))
print(model["choice"].choose("the animal went to", ["the house", "the cat"]))
print(model["similarity"].embed(["the cat"]).shape)
print(model["first"].fill("the [MASK] went"), model["first"].next("the cat", "went"))
for words in (
    ["classify", "the cat", "-m", "classification", "--json"],
    ["predict", "classification", "rows.csv", "--out", "answers.csv"],
    ["evaluate", "classification", "rows.csv", "--json"],
    ["info", "qa", "--json"],
):
    sys.argv = ["bertkit", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, words
from fastapi.testclient import TestClient
from bertkit.serve.http import create_app
with TestClient(create_app(model)) as client:
    print(client.post("/v1/tag", json={"texts": ["the cat"]}).raise_for_status().json())
    assert client.post("/v1/attention", json={"texts": ["the cat"]}).status_code == 422
"""


def test_everything_is_answered_without_torch(tmp_path):
    for name in ("classification", "tagging", "qa", "choice", "similarity"):
        exported(bundle_of("bert", name), tmp_path / name)
    exported(bundle_of("modernbert"), tmp_path / "first")
    (tmp_path / "rows.csv").write_text("text,label\nthe cat,odd\nthe dog,even\n")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ASKED], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answers.csv").read_text().startswith("text,label,predicted_label")


@pytest.fixture
def folder(tmp_path):
    exported(bundle_of("bert", "classification"), tmp_path / "m")
    return tmp_path / "m"


def point_elsewhere(folder, place):
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    tensor = next(one for one in model.graph.initializer if one.external_data)
    next(entry for entry in tensor.external_data if entry.key == "location").value = place
    onnx.save(model, folder / "model.onnx")


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "inner/../../secret", "link"])
def test_data_outside_the_folder_is_refused(folder, place):
    (folder.parent / "secret").write_bytes(bytes(1 << 16))
    (folder / "link").symlink_to(folder.parent / "secret")
    point_elsewhere(folder, place)
    with pytest.raises(ArtifactError, match=r"names data at .*; expected a file beside it"):
        bertkit.load(folder)


def test_of_a_place_that_is_told_twice_the_last_counts():
    """As the runtime reads it."""
    entry = field(1, b"offset") + field(1, b"location") + field(2, b"model.onnx.data") + field(2, b"../secret")
    assert [*outside(field(7, field(5, field(13, entry))))] == ["../secret"]


def test_cores_are_those_that_torch_would_take(folder, monkeypatch):
    for told, threads in (("3", 3), ("4,2", os.cpu_count()), ("", os.cpu_count())):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert bertkit.load(folder).runner.threads == threads


@pytest.mark.parametrize("content", [b"", b"\x3a\xff\xff\xff\x0f", b"not a graph"])
def test_a_damaged_graph_is_refused(folder, content):
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged or cut off"):
        bertkit.load(folder)


def test_a_graph_beside_weights_does_not_hide_them(tmp_path):
    bundle = bundle_of("bert", "classification")
    save_bundle(bundle, tmp_path / "m")
    expected = bertkit.load(tmp_path / "m", device="cpu").classify("the cat")
    torch.save(load_file(tmp_path / "m" / "model.safetensors"), tmp_path / "m" / "pytorch_model.bin")
    (tmp_path / "m" / "model.safetensors").unlink()
    (tmp_path / "m" / "model.onnx").write_bytes(b"somebody else's")
    assert bertkit.load(tmp_path / "m", device="cpu").classify("the cat") == expected


def test_a_graph_of_others_is_refused(folder):
    place, told = (onnx.helper.make_tensor_value_info(name, 1, ["T"]) for name in ("input_ids", "last_hidden_state"))
    node = onnx.helper.make_node("Identity", ["input_ids"], ["last_hidden_state"])
    graph = onnx.helper.make_graph([node], "g", [place], [told])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "model.onnx")
    with pytest.raises(ArtifactError, match=r"model\.onnx asks for other inputs; expected one that bertkit export made"):
        bertkit.load(folder)
    (folder / "bertkit.json").unlink()
    with pytest.raises(ArtifactError, match="was exported, which is for answers alone"):
        bertkit.load(folder)


def test_what_was_not_exported_is_refused(folder, tmp_path):
    model = bertkit.load(folder)
    with pytest.raises(InputError, match="layers below the last were not exported"):
        model.features(["the cat"], layers=[-2])
    with pytest.raises(InputError, match="attention was not exported"):
        model.attention(["the cat"])
    with pytest.raises(ArtifactError, match="this model was exported; copy its folder"):
        model.save(tmp_path / "copy")
    rows = [{"text": f"the cat {index}", "label": "ab"[index % 2]} for index in range(60)]
    with pytest.raises(ArtifactError, match="this model was exported, which is for answers alone"):
        bertkit.finetune("classification", model, tmp_path / "r", train=rows, device="cpu")
    assert not (tmp_path / "r").exists()
    with pytest.raises(InputError, match="an exported model runs as it is"):
        bertkit.load(folder, precision="bf16")


def test_it_travels_to_other_processes(folder):
    network = bertkit.load(folder).network
    copy = pickle.loads(pickle.dumps(Model(bertkit.load(folder).bundle, threads=1).runner))
    assert isinstance(copy, Exported)
    assert (copy.threads, copy.budget) == (1, network.budget // network.threads)
    assert copy.checksums() == network.checksums()


def test_many_texts_are_computed_side_by_side_each_on_one_core(folder, monkeypatch):
    few, many = (Model(bertkit.load(folder).bundle, threads=threads) for threads in (1, 3))
    texts, taken = ["the cat went to the river .", "the dog", "the animal"] * 100, []
    monkeypatch.setattr(few.runner, "bulk", lambda budget: {"budget": budget})
    run = many.runner._run
    monkeypatch.setattr(many.runner, "_run", lambda *given: taken.append(one_of_many()) or run(*given))
    np.testing.assert_allclose(many.embed(texts), few.embed(texts), atol=1e-6)
    assert [one.label for one in many.classify(texts)] == [one.label for one in few.classify(texts)]
    assert len(taken) > 6 and all(taken)
    assert many.runner.narrow is not many.runner.session and few.runner.narrow is few.runner.session
    taken.clear()
    many.embed(texts[:3])
    assert taken == [False]


def test_workers_answer_a_file_alike(folder, tmp_path):
    (tmp_path / "rows.csv").write_text("text\n" + "the cat went to the river .\nthe dog\n" * 20)
    for workers in (1, 2):
        bertkit.predict(folder, tmp_path / "rows.csv", tmp_path / f"{workers}.csv", workers=workers)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"an exported model needs onnxruntime.*pip install 'bertkit\[onnx\]'"):
        bertkit.load(folder)
