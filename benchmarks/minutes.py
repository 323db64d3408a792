"""What does a recipe reach in a given time? Pre-trains with several budgets, and fine-tunes the model of each on GLUE-6, or
on the sets of --tasks.

`python benchmarks/minutes.py STORE --recipe fast-base --budgets 5m,10m,20m`. A budget counts training time only; the table
also has the seconds of the whole command, with compilation and the last evaluation.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from glue import GLUE6, OTHERS, measured, with_amounts
from measure import report


def main() -> None:
    options = arguments()
    rows = [
        row_of(budget, Path(options.keep) / f"{options.recipe}-{budget}", options) for budget in options.budgets.split(",")
    ]
    report(f"{options.recipe} on dev by minutes of pre-training", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--recipe", default="fast-base")
    parser.add_argument("--budgets", default="5m,10m,20m")
    parser.add_argument("--keep", default="minutes", help="the folder for the runs; runs found there are resumed")
    parser.add_argument("--tasks", default=",".join(GLUE6), help="comma-separated sets to fine-tune on, or all")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipe")
    return with_amounts(parser).parse_args()


def row_of(budget: str, run: Path, options: argparse.Namespace) -> dict:
    begin = time.monotonic()
    command = [sys.executable, "-m", "bertkit", "pretrain", options.store, "--recipe", options.recipe, "--budget", budget]
    command += ["--out", str(run), "--workers", "8", *(word for one in options.settings for word in ("--set", one))]
    subprocess.run(command, check=True)
    row = {"budget": budget, "seconds in all": round(time.monotonic() - begin)} | figures(run)
    options.model = str(run / "model")
    names = [*GLUE6, *OTHERS] if options.tasks == "all" else options.tasks.split(",")
    found = {one["set"]: one["dev"] for one in measured(names, options)}
    row |= {name.removeprefix("glue/"): score for name, score in found.items()}
    print(row, flush=True)
    return row


def figures(run: Path) -> dict:
    """Returns a run's steps, tokens and held-out loss."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = max(row.get("tokens", 0) for row in rows)
    held_out = [row["held_out_loss"] for row in rows if "held_out_loss" in row]
    return {"steps": rows[-1]["step"], "M tokens": round(tokens / 1e6), "held-out loss": held_out[-1]}


if __name__ == "__main__":
    main()
