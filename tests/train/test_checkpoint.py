import json

import pytest
import torch

from bertkit.train.checkpoint import Checkpoint, State, read_checkpoint, write_checkpoint


def write(run, step, keep=2):
    tensors = {"w": torch.full((3,), float(step))}
    write_checkpoint(run, Checkpoint(State(step=step, cursor=7 * step), tensors, {"m/w": torch.ones(3)}), keep)


def test_the_newest_is_read_and_old_ones_leave(tmp_path):
    assert read_checkpoint(tmp_path) is None
    for step in (1, 2, 10):
        write(tmp_path, step)
    found = read_checkpoint(tmp_path)
    assert found.state == State(step=10, cursor=70)
    assert found.weights["w"].tolist() == [10, 10, 10]
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
    assert read_checkpoint(tmp_path).state.step == 1
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
    assert read_checkpoint(tmp_path).state.step == 1
    assert not caplog.text
