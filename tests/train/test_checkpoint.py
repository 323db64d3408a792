import json

import pytest
import torch

from bertkit.train.checkpoint import State, read_checkpoint, write_checkpoint
from bertkit.train.distributed import World


def write(run, step, keep=2):
    tensors = {"weights/w": torch.full((3,), float(step)), "optimizer/m/w": torch.ones(3)}
    write_checkpoint(run, State(step=step, cursor=7 * step), tensors, keep, World())


def test_the_newest_is_read_and_old_ones_leave(tmp_path):
    assert read_checkpoint(tmp_path) is None
    for step in (1, 2, 10):
        write(tmp_path, step)
    state, tensors = read_checkpoint(tmp_path)
    assert state == State(step=10, cursor=70)
    assert tensors["weights/w"].tolist() == [10, 10, 10]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000002", "00000010"]


@pytest.mark.parametrize("damage", ["cut", "flip", "state", "missing"])
def test_damage_leads_to_the_one_before(tmp_path, damage, caplog):
    write(tmp_path, 1)
    write(tmp_path, 2)
    folder = tmp_path / "checkpoints" / "00000002"
    file = folder / ("state.json" if damage == "state" else "00000.safetensors")
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.write_bytes(content[: len(content) // 2])
    assert read_checkpoint(tmp_path)[0].step == 1
    assert "going back to the one before" in caplog.text


def test_nothing_in_a_checkpoint_is_pickled(tmp_path):
    write(tmp_path, 1)
    names = sorted(path.name for path in (tmp_path / "checkpoints" / "00000001").iterdir())
    assert names == ["00000.safetensors", "state.json"]
    json.loads((tmp_path / "checkpoints" / "00000001" / "state.json").read_text())


def test_one_never_finished_is_no_checkpoint(tmp_path, caplog):
    write(tmp_path, 1)
    write(tmp_path, 2)
    (tmp_path / "checkpoints" / "00000002" / "state.json").unlink()
    assert read_checkpoint(tmp_path)[0].step == 1
    assert not caplog.text
