"""Atomic writes of files and folders (write aside, then rename), locks that keep other runs out of a folder, and helpers to
read JSON and checksums."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bertkit.errors import ArtifactError, BertkitError, ConfigError, InputError, WriteError


@contextmanager
def new_file(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path beside `path` to write to; renames it to `path` if the block succeeds."""
    path = Path(path).resolve()
    with beside(path) as aside:
        aside.touch()
        usual = aside.stat().st_mode  # some libraries create files that only their owner can read
        with _room_for(path):
            yield aside
        aside.chmod(usual)
        _flush(aside)
        aside.replace(path)


def write_text(path: Path | str, text: str) -> None:
    """Writes a file atomically, in UTF-8, with newlines unchanged."""
    with new_file(path) as aside:
        aside.write_bytes(text.encode())


@contextmanager
def new_folder(path: Path | str, *, marker: str) -> Iterator[Path]:
    """Yields a temporary folder beside `path` to fill; renames it to `path` if the block succeeds.

    An existing folder is replaced only if it is empty or holds the file `marker`, which shows that it is one of ours.
    """
    path = Path(path).resolve()
    if path == Path.cwd():
        raise ArtifactError(f"{path} is the folder you are in, which cannot be replaced; give a name within it")
    ours = path.is_dir() and ((path / marker).exists() or not any(path.iterdir()))
    if path.exists() and not ours:
        raise ArtifactError(f"{path} exists and is not a folder with {marker}; give another place, or remove it first")
    with beside(path) as aside:
        aside.mkdir()
        with _room_for(path):
            yield aside
        for file in sorted(aside.rglob("*")):
            if file.is_file():
                file.chmod(aside.stat().st_mode & 0o666)  # a file's part of a folder's usual mode
                _flush(file)
        _take_place(aside, path)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks a folder against other runs until the block or process ends; removes what killed runs had written aside."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError) as error:  # not every system has such locks
            if isinstance(error, BlockingIOError):
                raise InputError(f"another run writes to {folder}; wait for it, or give another --out") from error
        for left in [path for path in folder.iterdir() if re.fullmatch(r"\..+\.[0-9a-f]{16}", path.name)]:
            _remove(left)
        yield


def is_empty(folder: Path) -> bool:
    """Whether the folder is missing or holds only hidden files."""
    return not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir())


def read_json(file: Path, fault: type[BertkitError] = ConfigError) -> dict[str, Any]:
    """Reads an object from a JSON file; {} if there is no file."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise fault(f"{file}: not readable as JSON ({error}); make or fetch it again") from error
    if not isinstance(content, dict):
        raise fault(f"{file}: expected a JSON object, found {type(content).__name__}")
    return content


def checksum(file: Path) -> str:
    """Returns the SHA-256 of a file, to verify it when it is read again."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yields a unique path beside `path`; removes whatever is still there afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield aside
    finally:
        _remove(aside)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """Raises WriteError with the path and advice: what files, numpy and safetensors raise on a full disk has neither."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        if type(error) not in (SafetensorError, OSError):  # kinds of OSError name their file
            raise
        raise WriteError(f"{path}: could not be written ({error}); is there room on the disk?") from error


def _take_place(aside: Path, path: Path) -> None:
    """Renames `aside` to `path`; removes an old folder only once the new one is in place."""
    if not path.exists():
        aside.rename(path)
        return
    old = path.with_name(f"{aside.name}.old")
    path.rename(old)
    try:
        aside.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(file: Path) -> None:
    """Forces a file to disk, so that its content is there before the rename."""
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())
