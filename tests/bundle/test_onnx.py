"""Every member and every task says the same as an ONNX graph, in batches of any shape."""

from itertools import cycle

import numpy as np
import pytest
from support.exports import TOKENIZER, bundle_of, exported
from support.records import RECORDS

from bertkit.bundle.members import FAMILIES
from bertkit.data.inputs import lay_units
from bertkit.model.device import find_device
from bertkit.serve.predictor import Model
from bertkit.tasks import TASKS

CPU = find_device("cpu")
PAIRS = [*zip(FAMILIES, cycle(TASKS), strict=False), *(("bert", name) for name in TASKS)]
PAIRS += [("longformer", "qa"), ("longformer", "choice"), ("modernbert", "qa"), ("deberta-v2", "tagging")]
PAIRS += [("bert", "tagging-lstm"), ("roberta", "tagging-features"), ("bert", "classification-weighted")]
CASES = [(*pair, {}) for pair in dict.fromkeys(PAIRS)]
CASES += [("modernbert", name, {"summary_of": "mean"}) for name in ("classification", "choice", "tagging")]


@pytest.mark.parametrize(("member", "name", "changes"), CASES)
def test_a_graph_says_what_the_network_says(member, name, changes, tmp_path):
    bundle = bundle_of(member, name, **changes)
    found, task = exported(bundle, tmp_path / "m"), bundle.task
    inputs = [one for unit in task.units(RECORDS[task.settings.task], TOKENIZER) for one in unit]
    short = [one for one in inputs if len(one) == min(map(len, inputs))]
    for some in (inputs[:1], short[:3], inputs[::3], inputs):
        data = lay_units([[one] for one in some], task.layout)
        ours, theirs = bundle.network.tell(data, CPU, "fp32"), found.network.tell(data)
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    texts = [record.text for record in RECORDS["classification"]]
    ours, theirs = (Model(one, device="cpu").embed(texts) for one in (bundle, found))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


@pytest.mark.parametrize("member", FAMILIES)
def test_pretrained_heads_come_along(member, tmp_path):
    bundle = bundle_of(member)
    ours, theirs = Model(bundle, device="cpu"), Model(exported(bundle, tmp_path / "m"))
    assert theirs.answers() == ours.answers() == ["embed", "features", "fill", "next"]
    masked = ["the [MASK] went .", "[MASK] to the [MASK] of the river ."]
    for mine, their in zip(ours.fill(masked), theirs.fill(masked), strict=True):
        assert [[c.piece for c in mask] for mask in mine] == [[c.piece for c in mask] for mask in their]
    pairs = [["the cat", "the dog went"], ["went to the house .", "."]]
    np.testing.assert_allclose(theirs.next(*pairs), ours.next(*pairs), atol=1e-4)
    for pooling in ("mean", "max", "cls"):
        vectors = [one.embed(["the cat", "the dog went to the river ."], pooling=pooling) for one in (ours, theirs)]
        np.testing.assert_allclose(*vectors, atol=1e-4)
    features = [one.features(["the cat went"])[0].vectors for one in (ours, theirs)]
    np.testing.assert_allclose(*features, atol=1e-4)


def test_left_to_right_stays_left_to_right(tmp_path):
    bundle = bundle_of("bert", "tagging", causal=True)
    ours, theirs = (
        one.tag("the cat went to the river .") for one in (Model(bundle), Model(exported(bundle, tmp_path / "m")))
    )
    assert [entity[:4] for entity in ours] == [entity[:4] for entity in theirs]


def test_a_row_may_be_longer_than_any_text(tmp_path):
    """Rotations are looked up for places in a text, not in the row."""
    bundle = bundle_of("modernbert", global_every=1)
    texts = ["the cat went to the river . " * size for size in (1, 3, 7, 12)] * 6
    ours, theirs = (Model(one, device="cpu").embed(texts) for one in (bundle, exported(bundle, tmp_path / "m")))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
