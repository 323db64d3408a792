"""Models that lie in the package, a folder each: a name that every verb takes, with no network."""

from pathlib import Path

OWN = Path(__file__).parent
DEFAULT = "bertkit-en-small"  # what is asked, and trained on, unless told otherwise
