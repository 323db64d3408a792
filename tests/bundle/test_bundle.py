import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.family import CHANGES

import bertkit
from bertkit.bundle.bundle import load_bundle
from bertkit.bundle.hub import find_model
from bertkit.bundle.members import FAMILIES
from bertkit.errors import ArtifactError, BertkitError, ConfigError, HubError, InputError

FILES = ["bertkit.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "m")
    return tmp_path / "m"


def change(folder, **settings):
    file = folder / "config.json"
    content = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def state(model):
    return model.network.cpu().state_dict()


def assert_same_weights(a, b):
    assert state(a).keys() == state(b).keys()
    assert all(torch.equal(state(a)[name], state(b)[name]) for name in state(a))


def test_a_saved_folder_loads_to_the_same_model(model, folder):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    again = bertkit.load(folder)
    assert_same_weights(model, again)
    assert again.config == model.config
    assert again.fill("mara is a [MASK]") == model.fill("mara is a [MASK]")


@pytest.mark.parametrize("heads", [(True, True), (True, False), (False, True), (False, False)])
def test_every_mix_of_heads_loads_in_transformers_with_nothing_to_report(model, tmp_path, heads):
    transformers = pytest.importorskip("transformers")
    masked, next_sentence = heads
    model.network.masked = model.network.masked if masked else None
    model.network.next = model.network.next if next_sentence else None
    if masked and not next_sentence:
        model.network.encoder.pooler = None
    model.save(tmp_path / "m")
    settings = json.loads((tmp_path / "m" / "config.json").read_text())
    theirs, report = getattr(transformers, settings["architectures"][0]).from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    assert not any(report.values())
    theirs.save_pretrained(tmp_path / "theirs")
    model.tokenizer.write_files(tmp_path / "theirs")
    assert_same_weights(model, bertkit.load(tmp_path / "theirs"))


def test_real_weights_go_round_bit_by_bit(minilm, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = bertkit.load(minilm)
    ours.save(tmp_path / "ours")
    theirs, report = transformers.AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    first, last = load_file(minilm / "model.safetensors"), load_file(tmp_path / "theirs" / "model.safetensors")
    first.pop("embeddings.position_ids", None)
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)


def test_real_weights_give_transformers_hidden_states(minilm):
    transformers = pytest.importorskip("transformers")
    ours, theirs = bertkit.load(minilm), transformers.AutoModel.from_pretrained(minilm).eval()
    texts = ["A man is eating food.", "Hello!", "The quick brown fox jumps over the lazy dog. " * 20]
    layers = range(ours.config.layers + 1)
    for text, found in zip(texts, ours.features(texts, layers=layers), strict=True):
        ids = torch.tensor(ours.tokenizer.encode(text).ids[None]).long()
        with torch.no_grad():
            expected = theirs(ids, output_hidden_states=True).hidden_states
        for layer in layers:
            np.testing.assert_allclose(found.vectors[layer], expected[layer][0], atol=1e-4)


def test_old_files_load(model, folder):
    """pytorch_model.bin with gamma and beta, tied copies, constants, no model_type."""
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    change(folder, model_type=..., architectures=...)
    assert_same_weights(model, bertkit.load(folder))
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    torch.save(old, folder / "pytorch_model.bin")
    assert_same_weights(model, bertkit.load(folder))


def test_half_precision_files_become_fp32(model, folder):
    save_file(
        {name: t.bfloat16() for name, t in load_file(folder / "model.safetensors").items()}, folder / "model.safetensors"
    )
    again = bertkit.load(folder)
    assert {tensor.dtype for tensor in state(again).values()} == {torch.float32}


@pytest.fixture
def electra(tokenizer):
    """A small model that only fills in pieces."""
    model = bertkit.create("tiny", tokenizer, family="electra", embedding=64, positions=64, pooler=False)
    model.network.next = None
    return model


def test_half_of_a_model_answers_as_transformers_does(electra, tmp_path):
    transformers = pytest.importorskip("transformers")
    electra.save(tmp_path / "whole")
    bertkit.convert(tmp_path / "whole", tmp_path / "half", half=True)
    assert {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "float16"
    ours = bertkit.load(tmp_path / "half", device="cpu")
    assert {tensor.dtype for tensor in state(ours).values()} == {torch.float32}
    theirs, report = transformers.ElectraForMaskedLM.from_pretrained(
        tmp_path / "half", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    (encoding,) = ours.encode_texts(["mara is a [MASK] in elmford"], truncate=False, read_mask=True)
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(encoding.ids[None]).long()).logits[0]
    (found,) = ours.each("", [encoding], lambda batch: ours.runner.masked_logits(batch, np.arange(len(encoding)), 99))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    (whole,) = bertkit.load(tmp_path / "whole", device="cpu").embed(["mara is a baker"])
    np.testing.assert_allclose(ours.embed(["mara is a baker"])[0], whole, atol=1e-2)


def test_numbers_too_large_for_half_are_refused(electra, tmp_path):
    electra.network.masked.bias.data[3] = -70_000.0
    electra.save(tmp_path / "whole")
    with pytest.raises(ArtifactError, match=r"generator_lm_head\.bias holds -70,000; fp16 holds numbers up to 65,504"):
        bertkit.convert(tmp_path / "whole", tmp_path / "half", half=True)
    assert not (tmp_path / "half").exists()


def test_a_pickle_with_code_is_refused(folder):
    class Evil:
        def __reduce__(self):
            return print, ("code ran",)

    torch.save({"weight": Evil()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match="holds more than tensors, which is never loaded"):
        bertkit.load(folder)
    torch.save({"weights": [torch.ones(1)]}, folder / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match="expected a table of plain tensors"):
        bertkit.load(folder)


def test_missing_and_damaged_weights_are_named(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for cut in (0, 5, 1000, len(content) - 10):
        file.write_bytes(content[:cut])
        with pytest.raises(ArtifactError, match=r"model\.safetensors: damaged or cut off"):
            bertkit.load(folder)
    file.unlink()
    with pytest.raises(ArtifactError, match="no weights here"):
        bertkit.load(folder)


def test_missing_parameters_and_wrong_shapes_are_named(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "bert.encoder.layer.1.attention.self.key.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    with pytest.raises(ArtifactError, match=f"missing .*{name}"):
        bertkit.load(folder)
    save_file(tensors | {name: torch.ones(3, 128)}, file)
    with pytest.raises(ArtifactError, match="query, key and value differ in shape"):
        bertkit.load(folder)
    save_file(tensors | {"bert.pooler.dense.weight": torch.ones(3, 3)}, file)
    with pytest.raises(ArtifactError, match=r"bert\.pooler\.dense\.weight is \[3, 3\]; the config asks for \[128, 128\]"):
        bertkit.load(folder)
    save_file(tensors | {"cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"] + 1}, file)
    with pytest.raises(ArtifactError, match="tied to the embeddings"):
        bertkit.load(folder)


ABSURD = [
    ({"num_attention_heads": 7}, "cannot be shared by 7 heads"),
    ({"hidden_size": -4}, "hidden_size is -4"),
    ({"num_hidden_layers": 1_000_000_000}, "num_hidden_layers is 1000000000; expected a whole number from 1 to 512"),
    ({"hidden_act": "magic"}, "hidden_act is 'magic'; expected one of gelu"),
    ({"hidden_act": ["gelu"]}, "hidden_act is"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"is_decoder": "maybe"}, "is_decoder is 'maybe'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"model_type": "gpt2"}, "model_type is 'gpt2', which is not supported; supported: bert"),
    ({"model_type": ["bert"]}, "model_type is"),
    ({"hidden_size": ...}, "has no hidden_size"),
    ({"layer_norm_eps": ..., "layer_norm_epz": 1e-5}, 'did you mean "layer_norm_eps"'),
    ({"num_hidden_layers": 3}, r"missing bert\.encoder\.layer\.2"),
    ({"vocab_size": 12}, "the tokenizer has 276 pieces, the model knows 12; they do not belong together"),
    ({"vocab_size": 300}, "word_embeddings.weight is"),
    ({"architectures": "BertForSequenceClassification"}, "architectures is .*; expected a list"),
    ({"architectures": ["BertForSequenceClassification"], "id2label": ["a", "b"]}, "of another kind than expected"),
    (
        {"architectures": ["BertForSequenceClassification"], "problem_type": "regression", "id2label": {"0": "a", "1": "b"}},
        "regression with 2 labels",
    ),
]


@pytest.mark.parametrize(("settings", "message"), ABSURD)
def test_absurd_configs_are_refused(folder, settings, message):
    change(folder, **settings)
    with pytest.raises(BertkitError, match=message):
        bertkit.load(folder)


def test_settings_of_others_are_not_read(folder):
    change(folder, auto_map={"AutoModel": "evil.Model"}, _attn_implementation_internal="evil/kernels", finetuning_task="x")
    assert bertkit.load(folder).config.layers == 2


def test_a_config_that_is_no_json_is_named(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: not readable as JSON"):
        bertkit.load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        bertkit.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"no config\.json"):
        bertkit.load(folder)


def test_a_tokenizer_of_another_model_is_refused(folder, model):
    bigger = bertkit.Tokenizer.from_vocabulary([*model.tokenizer.vocabulary, "more"], cased=False)
    bigger.write_files(folder)
    with pytest.raises(ArtifactError, match="do not belong together"):
        bertkit.load(folder)


def test_rounded_weights_are_not_saved(folder, tmp_path):
    with pytest.raises(InputError, match=r"loaded in torch\.bfloat16, which rounded its weights; load it in fp32"):
        bertkit.load(folder, device="cpu", precision="bf16").save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_saving_is_whole_or_not_at_all(model, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(type(model.tokenizer), "write_files", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        model.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["m"]


def test_saving_replaces_a_model_but_nothing_else(model, folder, tmp_path):
    model.save(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ArtifactError, match="exists and is not a folder with"):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_names_that_are_not_here(tmp_path):
    with pytest.raises(ArtifactError, match="no such model folder"):
        load_bundle(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="no such model folder"):
        load_bundle("./models/x")
    with pytest.raises(HubError, match="the hub gave no model of that name"):
        load_bundle("some-model-that-is-not-cached")
    with pytest.raises(ArtifactError, match=r"no config\.json"):
        load_bundle(tmp_path)


OWN = [
    ({"task": {"task": "tagging", "max_length": None}}, "of another kind than expected"),
    ({"task": {"task": "tagging", "labels": None}}, "labels is None; expected tuple"),
    ({"task": {"task": "tagging", "labels": 5}}, "labels is 5; expected tuple"),
    ({"task": {"task": "tagging", "temperature": 0}}, "temperature is 0"),
    ({"task": {"task": "tagging", "features": ["x"]}}, r"features is \('x',\); expected tuple\[int, \.\.\.\]"),
    ({"task": {"task": "tagging", "labels": ["x", 1]}}, r"labels is \('x', 1\); expected tuple\[str"),
    ({"task": {"task": "qa", "threshold": "x"}}, r"threshold is 'x'; expected float \| None"),
]


@pytest.mark.parametrize(("settings", "message"), OWN)
def test_absurd_tasks_are_refused(folder, settings, message):
    file = folder / "bertkit.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(BertkitError, match=message):
        bertkit.load(folder)


def test_a_folder_with_a_config_is_not_a_model_yet(model, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ArtifactError, match="exists and is not a folder with"):
        model.save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(("name", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)])
def test_weights_in_shards_are_read(name, save, model, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, _, ending = name.partition(".")
    names = {one: f"{stem}-{index % 2}.{ending}" for index, one in enumerate(tensors)}
    for file in set(names.values()):
        save({one: tensors[one] for one in names if names[one] == file}, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": names}))
    assert_same_weights(model, bertkit.load(folder))


def test_shards_lie_beside_their_index(folder):
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "../elsewhere.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ArtifactError, match=r"m/elsewhere\.safetensors: damaged or cut off"):
        bertkit.load(folder)


@pytest.mark.parametrize("family", ["Roberta", "Bert"])
def test_roberta_s_tokenizer_tells_of_one_segment(family, tmp_path):
    """transformers' configuration has two unless told, of which the second is never read."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "s.txt").write_text("she bakes the bread and he mends the nets\n" * 20)
    tokenizer = bertkit.learn_vocabulary([tmp_path / "s.txt"], 300, tmp_path / "v", kind="bpe").tokenizer
    sizes = dict(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, pad_token_id=tokenizer.pad
    )
    told = dict(vocab_size=len(tokenizer), type_vocab_size=2, num_labels=3, initializer_range=0.5)
    settings = getattr(transformers, f"{family}Config")(**told, **sizes)
    theirs = getattr(transformers, f"{family}ForSequenceClassification")(settings).eval()
    theirs.save_pretrained(tmp_path / "m")
    tokenizer.write_files(tmp_path / "m")
    found = bertkit.load(tmp_path / "m", device="cpu")
    ids = tokenizer.encode_batch(["she bakes"], ["the bread"])[0].ids
    expected = theirs(torch.from_numpy(ids)[None].long()).logits.softmax(-1)[0].tolist()
    assert list(found.classify("she bakes", "the bread").probabilities.values()) == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def pieces(request, tmp_path_factory):
    """A tokenizer of each kind; WordPiece and Unigram do not know all characters of the texts below."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "s.txt").write_text("She bakes the bread, and he mends the nets.\n" * 20)
    size = {"wordpiece": 60, "bpe": 300, "unigram": 40}[request.param]
    return bertkit.learn_vocabulary([folder / "s.txt"], size, folder / "v", kind=request.param).tokenizer


READ = [("she bakes", "he mends"), ("She ☃ bakes ☃ the bread.", None), (" a  b\n", "Ünïcödé 中文 the bread, and he mends")]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_member_reads_texts_as_transformers_does(family, pieces, tmp_path):
    """From the text on, with each kind of pieces: segments, unknown pieces and the padding's id included."""
    transformers = pytest.importorskip("transformers")
    more = dict(layers=2, width=32, heads=2, feedforward=48, positions=64, init_std=0.5) | CHANGES[family]
    model = bertkit.create("tiny", pieces, family=family, **more)
    model.save(tmp_path / "m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    theirs, ours = transformers.AutoModel.from_pretrained(tmp_path / "m").eval(), bertkit.load(tmp_path / "m", device="cpu")
    for text, pair in READ:
        asked = tokenizer(text, pair, return_tensors="pt")
        assert ("token_type_ids" in asked) == (model.config.segments > 1)
        encoding = ours.tokenizer.encode(text, pair)
        assert asked["input_ids"][0].tolist() == encoding.ids.tolist()
        with torch.no_grad():
            expected = theirs(**asked).last_hidden_state[0, : len(encoding)]
        (found,) = ours.each("", [encoding], lambda batch: [ours.runner.vectors(batch)])
        np.testing.assert_allclose(found, expected, atol=1e-4)


def tuned(model, tmp_path, **settings):
    """A tagger as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    told = transformers.BertConfig(vocab_size=len(model.tokenizer), **sizes | settings)
    transformers.BertForTokenClassification(told).save_pretrained(tmp_path / "m")
    model.tokenizer.write_files(tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize("positions", [32, 300])
def test_models_that_others_tuned_read_as_much_as_they_have_positions(model, tmp_path, positions):
    found = bertkit.load(tuned(model, tmp_path, max_position_embeddings=positions), device="cpu")
    assert found.bundle.task.settings.max_length == positions
    assert len(found.tag("a b " * positions)) <= 2 * positions


def test_labels_of_one_name_are_refused(model, tmp_path):
    folder = tuned(model, tmp_path, num_labels=3)
    change(folder, id2label={"0": "x", "1": "y", "2": "x"})
    with pytest.raises(ConfigError, match=r"id2label is \{.*\}, where several share a name"):
        bertkit.load(folder)


def test_the_hub_gives_shards_and_all_that_is_read(monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import filter_repo_objects

    small = ["config_sentence_transformers.json", "added_tokens.json"]
    files = ["model.safetensors.index.json", "model-00001-of-00002.safetensors", *small]
    wanted = []

    def fetch(name, *, allow_patterns):
        wanted.append(list(filter_repo_objects([*files, "model.onnx"], allow_patterns=allow_patterns)))
        return Path(__file__).parent

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert find_model("some/model") == Path(__file__).parent
    assert wanted[0] == files
