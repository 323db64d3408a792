import json

import pytest
import torch

from bertkit.errors import TrainingError
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


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_passed_over_takes_no_place_of_what_is_written(tmp_path, keep):
    write(tmp_path, 1)
    write(tmp_path, 5)
    (tmp_path / "checkpoints" / "00000005" / "00000.safetensors").write_bytes(b"cut off")
    unfinished = tmp_path / "checkpoints" / "00000003"
    unfinished.mkdir()
    (unfinished / ".00000.safetensors.0123456789abcdef").touch()
    assert read_checkpoint(tmp_path)[0].step == 1
    write(tmp_path, 2, keep)
    assert names(tmp_path) == ["00000001", "00000002"][-keep:]
    assert read_checkpoint(tmp_path)[0].step == 2


def test_written_again_it_is_there_all_the_time(tmp_path, monkeypatch):
    write(tmp_path, 1, keep=1)
    monkeypatch.setattr("bertkit.train.checkpoint.save_file", lambda *_: read_checkpoint(tmp_path)[1] and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(tmp_path, 1, keep=1)
    assert read_checkpoint(tmp_path)[0].step == 1


def test_where_all_are_damaged_nothing_begins_anew_unasked(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "checkpoints" / "00000001" / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="all checkpoints are damaged; restore one, or remove checkpoints/"):
        read_checkpoint(tmp_path)
