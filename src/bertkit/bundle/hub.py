"""Resolves a model's name: a local folder, a model in the package, or one on the Hugging Face hub. Nothing else downloads
anything, and this only for a model given by name."""

import re
from pathlib import Path

from bertkit.errors import ArtifactError, HubError
from bertkit.models import OWN

HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
SMALL_FILES = ["*.json", "vocab.txt", "merges.txt", "spiece.model", "spm.model"]


def find_model(name: Path | str) -> Path:
    """Returns the folder, checkpoint or downloaded copy for a name. What exists locally is never looked up elsewhere."""
    path = Path(name).expanduser()
    if path.exists() or path.with_name(path.name + ".index").exists():
        return path
    if not HUB_NAME.match(str(name)):
        raise ArtifactError(f"{name}: no such model folder; expected a folder with config.json, or a hub name")
    own = OWN / str(name)
    return own if own.is_dir() else _fetch(str(name))


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "model.safetensors*", "model-0*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "pytorch_model*.bin"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        found = f"no such folder here, and the hub gave no model of that name ({type(error).__name__})"
        raise HubError(f"{name}: {found}; check the name and the network, or give a folder") from error
    return folder
