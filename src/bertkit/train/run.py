"""A run's folder: its saved settings, and the rule that it resumes only with the same ones."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertkit.atomic import is_empty, read_json
from bertkit.errors import InputError, TrainingError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def agreed(run: Path, recipe: Any, *, begun: dict[str, Any], fork: bool) -> str:
    """Returns the content of recipe.json; raises if a begun run has other settings, unless this is a fork."""
    new = json.loads(json.dumps({"recipe": asdict(recipe), **begun}))
    if old := read_json(run / "recipe.json", TrainingError):
        usual = flat({"recipe": asdict(type(recipe)())})  # defaults of settings that older files lack
        if (changed := differences(usual | flat(old), new)) and not fork:
            raise TrainingError(f"{run} has other settings: {'; '.join(changed[:6])}. Give another --out, or --fork it")
    elif not is_empty(run):
        raise TrainingError(f"{run} is not empty and holds no run; give another --out")
    return json.dumps(new, indent=2) + "\n"


def rows_of(run: Path, batch_tokens: int, ranks: int = 1) -> int:
    """Returns the row_tokens of a begun run, maybe from another device; 0 if there is none, or if such rows cannot make up
    the batch with as many on each rank."""
    rows: int = read_json(run / "recipe.json", TrainingError).get("recipe", {}).get("row_tokens", 0)
    return 0 if batch_tokens % (rows * ranks or 1) else rows


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the settings that differ, each as "name: old → new" with a dotted name."""
    a, b = flat(old), flat(new)
    return [f"{name}: {a.get(name)} → {b.get(name)}" for name in sorted({*a, *b}) if a.get(name) != b.get(name)]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested settings to dotted names."""
    names = dict[str, Any]()
    for name, value in settings.items():
        names |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return names


def parse_budget(text: str) -> float:
    """Returns the seconds in "90s", "20m", "1.5h" or "2d"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(text).strip())
    if not match:
        raise InputError(f"budget is {text!r}; expected a number with s, m, h or d, such as 20m")
    if not float(match[1]):
        raise InputError(f"budget is {text!r}; expected more than nothing")
    return float(match[1]) * UNITS[match[2]]
