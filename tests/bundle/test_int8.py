"""Eight bits: close to the network, and nothing depends on what else is in the batch."""

import numpy as np
import onnx
import pytest
from support.exports import TOKENIZER, bundle_of, exported
from support.records import RECORDS

from bertkit.bundle.members import FAMILIES
from bertkit.data.inputs import lay_units
from bertkit.model.device import find_device


@pytest.mark.parametrize("member", FAMILIES)
def test_a_text_does_not_see_its_neighbours(member, tmp_path, capfd):
    bundle = bundle_of(member, "classification")
    found, task = exported(bundle, tmp_path / "m", int8=True), bundle.task
    assert "Warning" not in capfd.readouterr().err
    told = onnx.load(tmp_path / "m" / "model.onnx", load_external_data=False)
    assert {node.domain for node in told.graph.node} <= {known.domain for known in told.opset_import}
    inputs = [unit[0] for unit in task.units(RECORDS["classification"], TOKENIZER)]
    data = lay_units([[one] for one in inputs], task.layout)
    together = found.network.tell(data)
    alone = np.concatenate([found.network.tell(lay_units([[one]], task.layout)) for one in inputs])
    np.testing.assert_allclose(alone, together, atol=1e-5)
    exact = bundle.network.tell(data, find_device("cpu"), "fp32")
    assert 0 < np.abs(together - exact).max() < 0.05
    assert (tmp_path / "m" / "model.onnx.data").stat().st_size < 0.7 * sum(p.nbytes for p in bundle.network.parameters())
