"""A run's folder: its recipe, and the rule that it goes on only with the same one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bertkit.atomic import new_file
from bertkit.errors import InputError, TrainingError
from bertkit.train.recipe import Training, differences, to_dict

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def open_run(run: Path, recipe: Training, *, begun: dict[str, Any], fork: bool) -> None:
    """Begins a run, or checks that it is the one that was begun."""
    file = run / "recipe.json"
    new = json.loads(json.dumps({"recipe": to_dict(recipe), **begun}))
    if file.exists():
        old = json.loads(file.read_text(encoding="utf-8"))
        if (changed := differences(old, new)) and not fork:
            raise TrainingError(
                f"{run} was begun otherwise: {'; '.join(changed[:6])}. Give another --out, or --fork to go on so"
            )
    elif run.exists() and any(run.iterdir()):
        raise TrainingError(f"{run} is not empty and holds no run; give another --out")
    with new_file(file) as aside:
        aside.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


def parse_budget(text: str) -> float:
    """Seconds of "90s", "20m", "1.5h" or "2d"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not match:
        raise InputError(f"budget is {text!r}; expected a number with s, m, h or d, such as 20m")
    return float(match[1]) * UNITS[match[2]]
