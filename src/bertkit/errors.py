"""All errors that a user can see.

    BertkitError          one clear line: what was found, what was expected, what to do
    ├── InputError        a text, a flag or an argument
    ├── DataError         a data file, named with its line
    ├── ConfigError       a model configuration
    ├── ArtifactError     a model folder, a weights file, a checkpoint
    ├── TrainingError     a run that cannot continue
    ├── MissingExtra      an optional library that is not installed
    ├── HubError          a hub model that could not be fetched
    └── WriteError        a file or folder that could not be written

The command line prints the message and exits with code 2; any other exception is a bug and shows its traceback.
"""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


class BertkitError(Exception):
    """The base class of all errors."""


class InputError(BertkitError, ValueError):
    """A text, flag or argument that cannot be used."""


class DataError(BertkitError, ValueError):
    """A data file that cannot be read, with the line where it went wrong."""

    def __init__(self, message: str, path: Path | str, line: int | None = None):
        place = f"{path}:{line}: " if line else f"{path}: " if path else ""
        super().__init__(f"{place}{message}")


class ConfigError(BertkitError, ValueError):
    """An invalid model configuration."""


class ArtifactError(BertkitError, ValueError):
    """A model folder, weights file or checkpoint that is missing, damaged or of the wrong kind."""


class TrainingError(BertkitError, RuntimeError):
    """A run that cannot continue."""


class MissingExtra(BertkitError, ImportError):
    """An optional library that is not installed."""


class HubError(BertkitError, OSError):
    """A hub model that could not be fetched."""


class WriteError(BertkitError, OSError):
    """A file or folder that could not be written."""


def did_you_mean(found: str, known: Iterable[str], cutoff: float = 0.75) -> str:
    """Returns ' (did you mean "x"?)' if a known name is close, else ''."""
    close = difflib.get_close_matches(found, list(known), n=1, cutoff=cutoff)
    return f' (did you mean "{close[0]}"?)' if close else ""


def check_choice(name: str, value: str, known: Iterable[str], error: type[BertkitError] = InputError) -> None:
    """Raises unless the value is one of those known."""
    if value not in known:
        raise error(f"{name} is {value!r}{did_you_mean(str(value), known)}; expected one of {', '.join(known)}")


def short(text: str) -> str:
    """Shortens a text to fit on a line."""
    return text if len(text) <= 60 else text[:57] + "..."


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports an optional library; raises MissingExtra with the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{purpose} needs {module}, which is not installed: pip install 'bertkit[{extra}]'") from error
