"""Models that ship with the package, a folder each; every verb takes their names, and works offline."""

from pathlib import Path

OWN = Path(__file__).parent
DEFAULT = "bertkit-en-small"  # for asking and fine-tuning, if no model is given
