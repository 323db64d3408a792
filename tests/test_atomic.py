import resource

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bertkit.atomic import alone, is_empty, new_file, new_folder, write_text
from bertkit.errors import ArtifactError, InputError, WriteError


def test_a_file_appears_only_when_whole(tmp_path):
    with pytest.raises(OSError, match="directory"), new_file(tmp_path / "a" / "f") as aside:
        aside.write_text(f"half {aside.rmdir()}")
    assert list((tmp_path / "a").iterdir()) == []
    with new_file(tmp_path / "f") as aside:
        aside.write_text("whole")
        assert not (tmp_path / "f").exists()
    assert (tmp_path / "f").read_text() == "whole"


def test_a_folder_appears_only_when_whole_and_replaces_its_like(tmp_path):
    for text in ("first", "second"):
        with new_folder(tmp_path / "d", marker="m") as aside:
            (aside / "m").write_text(text)
        assert (tmp_path / "d" / "m").read_text() == text
    with pytest.raises(RuntimeError), new_folder(tmp_path / "d", marker="m"):
        raise RuntimeError
    assert (tmp_path / "d" / "m").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_foreign_folders_and_files_are_left_alone(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "other").write_text("x")
    (tmp_path / "f").write_text("x")
    for name in ("d", "f"):
        with pytest.raises(ArtifactError, match="exists and is not"), new_folder(tmp_path / name, marker="m"):
            pass
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty", marker="m") as aside:
        (aside / "m").touch()
    assert (tmp_path / "empty" / "m").exists()


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    """Some libraries make files that only their owner may read."""
    with new_folder(tmp_path / "f", marker="m") as aside:
        (aside / "m").touch(mode=0o600)
    with new_file(tmp_path / "one") as aside:
        aside.unlink()
        aside.touch(mode=0o600)
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    assert usual == (tmp_path / "one").stat().st_mode == (tmp_path / "f/m").stat().st_mode


@pytest.fixture
def no_room():
    """Files above 64 KB are refused, as all are by a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_of_ours_and_leaves_nothing(tmp_path, no_room):
    weights = {"a": torch.zeros(100_000)}
    with pytest.raises(WriteError, match="d: could not"), new_folder(tmp_path / "d", marker="m") as aside:
        save_file(weights, aside / "w")
    with pytest.raises(WriteError, match="is there room"), new_file(tmp_path / "w") as aside:
        save_file(weights, aside)
    with pytest.raises(WriteError, match=r"t: could not be written .*File too large"):
        write_text(tmp_path / "t", "a" * 100_000)
    with pytest.raises(WriteError, match=r"n: could not be written .*requested"), new_file(tmp_path / "n") as aside:
        np.zeros(100_000).tofile(aside)
    assert list(tmp_path.iterdir()) == []


def test_links_are_followed_and_the_folder_one_is_in_stays(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_folder(tmp_path / "link", marker="m") as aside:
        (aside / "m").write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "m").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    monkeypatch.chdir(tmp_path / "real")
    with pytest.raises(ArtifactError, match="the folder you are in"), new_folder(".", marker="m"):
        pass
    assert (tmp_path / "real" / "m").read_text() == "new"


def test_one_run_at_a_time_writes_to_a_folder_and_clears_what_killed_ones_left(tmp_path):
    folder = tmp_path / "a" / "run"
    assert is_empty(folder)
    with alone(folder):
        assert is_empty(folder)
        with pytest.raises(InputError, match=r"another run writes to .*run; wait for it"), alone(folder):
            pass
    (folder / ".best.0123456789abcdef").mkdir()
    (folder / ".best.0123456789abcdef" / "weights").touch()
    for name in (".00000.ids.fedcba9876543210", ".best.0123456789abcdef.old", ".git", "model"):
        (folder / name).touch()
    assert not is_empty(folder)
    with alone(folder):
        assert {path.name for path in folder.iterdir()} == {".lock", ".best.0123456789abcdef.old", ".git", "model"}
