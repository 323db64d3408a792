"""Every member's config goes both ways, in old and new spellings; what is not supported is refused by name."""

import json

import pytest
import torch
import transformers
from support.batches import pack
from support.family import CHANGES, counterpart, small

from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.bundle.families import read_config, write_config
from bertkit.bundle.members import FAMILIES, family_of
from bertkit.errors import ConfigError
from bertkit.model.config import MEMBERS
from bertkit.tasks.pretraining import Pretraining


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_goes_round_through_transformers(name):
    config, family = small(name, pooler=True), FAMILIES[name]
    told = write_config(config, family)
    theirs = transformers.AutoConfig.for_model(told.pop("model_type"), **told).to_dict()
    assert family_of(theirs) is family
    assert read_config(theirs, family) == config


def test_tables_and_members_are_the_same():
    assert list(FAMILIES) == list(MEMBERS) == list(CHANGES)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("heads", ["masked", "none"])
def test_pretrained_folders_go_round_bit_by_bit(name, heads, tokenizer, tmp_path):
    """Ours in their class with nothing to report, theirs here: the same weights."""
    network = Pretraining(small(name, vocabulary=len(tokenizer)), masked=heads == "masked", next_sentence=False)
    save_bundle(Bundle(network, tokenizer, FAMILIES[name]), tmp_path / "m")
    kind = json.loads((tmp_path / "m" / "config.json").read_text())["architectures"][0]
    pools = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "AlbertModel", "LongformerModel")
    options = {"add_pooling_layer": False} if kind in pools else {}
    theirs, report = getattr(transformers, kind).from_pretrained(tmp_path / "m", output_loading_info=True, **options)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    specials = (theirs.config.bos_token_id, theirs.config.eos_token_id)
    assert specials == (tokenizer.cls, tokenizer.sep)
    theirs.save_pretrained(tmp_path / "t")
    tokenizer.write_files(tmp_path / "t")
    found = load_bundle(tmp_path / "t").network.state_dict()
    assert found.keys() == network.state_dict().keys()
    assert all((found[key] == tensor).all() for key, tensor in network.state_dict().items())


def test_strangers_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"model_type is 'xlnet', which is not supported; supported: bert, roberta, .*"):
        family_of({"model_type": "xlnet"})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deberta-v2", {"share_att_key": False}, "share_att_key is False, which is not supported; expected True"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ("deberta-v2", {"pos_att_type": ["c2p"]}, "pos_att_type is"),
        ("deberta-v2", {"position_buckets": -1}, "position_buckets is -1"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups is 2"),
        ("longformer", {"attention_window": [8, 16, 8]}, "expected one window for all layers"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        ("modernbert", {"layer_types": ["sliding_attention", "full_attention"]}, "expected every n-th layer"),
        ("modernbert", {"local_attention": 1}, "local_attention is 1, which is not supported; expected 2 at least"),
        ("modernbert", {"rope_scaling": {"factor": 2.0}}, r"rope_scaling is \{'factor': 2.0\}, which is not supported"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "expected rope_type default"),
        ("deberta-v2", {"pooler_hidden_act": "tanh"}, "pooler_hidden_act is 'tanh'"),
        ("electra", {"summary_type": "last"}, "summary_type is 'last'"),
        ("roberta", {"is_decoder": True}, "is_decoder is True"),
        *((name, {"quantization_config": {"bits": 8}}, "quantization_config is") for name in FAMILIES),
    ],
)
def test_what_changes_the_computation_is_refused(name, changes, message):
    settings = write_config(small(name), FAMILIES[name]) | changes
    with pytest.raises(ConfigError, match=message):
        read_config(settings, FAMILIES[name])


def test_old_configs_of_modernbert_are_read():
    """Before transformers 5 two numbers said what lists say now; published ones judge the mean."""
    told = write_config(small("modernbert"), FAMILIES["modernbert"]) | {"classifier_pooling": "mean"}
    old = {key: value for key, value in told.items() if key not in ("layer_types", "rope_parameters")}
    assert read_config(old, FAMILIES["modernbert"]) == small("modernbert", pooler=True, summary_of="mean")


def test_windows_and_layers_that_see_everything_go_round_through_transformers():
    """Without a window every layer sees everything; with one, it may be that none does."""
    for changes, every in ((dict(window=0, global_every=0), 1), (dict(window=0), 1), (dict(global_every=0), 0)):
        network = Pretraining(small("modernbert", **changes), next_sentence=False).eval()
        theirs = counterpart("modernbert", network, "ModernBertForMaskedLM")
        found = read_config(theirs.config.to_dict(), FAMILIES["modernbert"])
        assert found.global_every == every
        ids = torch.arange(5, 45)[None]
        with torch.no_grad():
            expected = theirs.model(ids).last_hidden_state[0]
            torch.testing.assert_close(network.encoder(pack(ids.tolist())), expected, atol=1e-5, rtol=0)
            again = Pretraining(found, next_sentence=False).eval()
            again.load_state_dict(network.state_dict(), strict=False)
            torch.testing.assert_close(again.encoder(pack(ids.tolist())), expected, atol=1e-5, rtol=0)


def test_a_place_that_deberta_adds_to_its_pieces_is_never_taken_for_none():
    settings = write_config(small("deberta-v2"), FAMILIES["deberta-v2"])
    with pytest.raises(ConfigError, match="the config has no position_biased_input"):
        read_config(
            {key: value for key, value in settings.items() if key != "position_biased_input"}, FAMILIES["deberta-v2"]
        )
