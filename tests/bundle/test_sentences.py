"""Sentence-BERT's folders, both ways: the same vectors as sentence-transformers gives."""

import json

import numpy as np
import pytest

import bertkit
from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.errors import ConfigError
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings

TEXTS = ["the cat sat", "a dog ran away to the house", "it"]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_reads_ours(model, tmp_path, pooling, normalize):
    library = pytest.importorskip("sentence_transformers")
    task = TASKS["similarity"](TaskSettings(task="similarity", pooling=pooling, normalize=normalize, objective="cosine"))
    network = build_network(model.config.with_(pooler=False), task).eval()
    save_bundle(Bundle(network, model.tokenizer, task=task), tmp_path / "m")
    ours = bertkit.load(tmp_path / "m", device="cpu").embed(TEXTS)
    theirs = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    theirs.save(str(tmp_path / "t"))
    found = load_bundle(tmp_path / "t")
    assert (found.task.settings.pooling, found.task.settings.normalize) == (pooling, normalize)
    np.testing.assert_allclose(bertkit.load(tmp_path / "t", device="cpu").embed(TEXTS), ours, atol=1e-6)


def test_a_published_folder_is_what_it_says(minilm):
    model = bertkit.load(minilm, device="cpu")
    assert model.bundle.task.settings.pooling == "mean" and model.bundle.task.settings.normalize
    np.testing.assert_allclose(np.linalg.norm(model.embed(TEXTS), axis=1), 1, atol=1e-5)


def test_other_modules_are_refused_by_name(model, tmp_path):
    model.save(tmp_path / "m")
    types = ["Transformer", "Pooling", "Dense"]
    modules = [{"path": "", "type": f"sentence_transformers.models.{kind}"} for kind in types]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "m" / "bertkit.json").unlink()
    with pytest.raises(ConfigError, match=r"modules.json has Dense; expected Transformer, Pooling, Normalize"):
        load_bundle(tmp_path / "m")


@pytest.mark.parametrize("content", ["[", "{}x", "3", '["a"]', '[{"path": ""}]', '[{"type": 3, "path": ""}]'])
def test_damaged_modules_are_named(model, tmp_path, content):
    model.save(tmp_path / "m")
    (tmp_path / "m" / "modules.json").write_text(content)
    (tmp_path / "m" / "bertkit.json").unlink()
    with pytest.raises(ConfigError, match=r"modules.json: expected a list of modules, each with type and path"):
        load_bundle(tmp_path / "m")


def test_modules_without_pooling_are_refused(model, tmp_path):
    model.save(tmp_path / "m")
    (tmp_path / "m" / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.models.Transformer"}]')
    (tmp_path / "m" / "bertkit.json").unlink()
    with pytest.raises(ConfigError, match=r"the pooling of .* is \{.*\}; expected one of mean, cls, max"):
        load_bundle(tmp_path / "m")


def described(model, folder, **files):
    """The folder of a model that sentence-transformers pools by the mean, with more or other files."""
    model.save(folder)
    (folder / "bertkit.json").unlink()
    (folder / "1_Pooling").mkdir()
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    told = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    for name, content in {"modules": told, "1_Pooling/config": {"pooling_mode_mean_tokens": True}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("mode", ["mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"])
def test_poolings_beside_those_we_know_are_refused(model, tmp_path, mode):
    pooling = {"1_Pooling/config": {"pooling_mode_mean_tokens": True, f"pooling_mode_{mode}": True}}
    with pytest.raises(ConfigError, match=rf"pooling_mode_{mode}': True\}}; expected one of mean, cls, max"):
        load_bundle(described(model, tmp_path / "m", **pooling))


def test_texts_that_are_changed_before_they_are_read_are_refused(model, tmp_path):
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    for number, (name, content, fine) in enumerate(
        (
            ("config_sentence_transformers", {**prompts, "default_prompt_name": "query"}, False),
            ("config_sentence_transformers", {**prompts, "default_prompt_name": "document"}, True),
            ("config_sentence_transformers", {**prompts, "default_prompt_name": None}, True),
            ("sentence_bert_config", {"do_lower_case": True}, False),
        )
    ):
        folder = described(model, tmp_path / str(number), **{name: content})
        if fine:
            assert load_bundle(folder).task.settings.pooling == "mean"
        else:
            with pytest.raises(ConfigError, match="do_lower_case is on, or default_prompt_name means"):
                load_bundle(folder)


@pytest.mark.parametrize(("told", "cut", "length"), [(8, 16, 8), (None, 16, 16), (None, 10**30, 64), (512, 16, 64)])
def test_the_longest_text_is_told_by_either_file(model, tmp_path, told, cut, length):
    tokenizer = {"model_max_length": cut, "tokenizer_class": "PreTrainedTokenizerFast"}
    files = {"sentence_bert_config": {"max_seq_length": told}, "tokenizer_config": tokenizer}
    assert load_bundle(described(model, tmp_path / "m", **files)).task.settings.max_length == length
