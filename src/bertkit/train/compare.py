"""Fine-tuning runs side by side: the results of each, and only the settings in which they differ."""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bertkit.errors import InputError
from bertkit.train.page import spelled
from bertkit.train.task_report import interval, read_results, shown

FOLLOWING = ("name", "steps", "evaluate_every", "log_every", "task.labels")  # settings that follow from the data


def compare_runs(runs: list[Path]) -> list[dict[str, Any]]:
    """Returns a row per run, in the given order: run, task, set, model, headline, metrics, intervals, seconds, settings."""
    if not runs:
        raise InputError("no runs to compare; name the folders of some fine-tuning runs")
    all_results = [read_results(run) for run in runs]
    names = [run.resolve().name for run in runs]
    rows = []
    for run, name, results, settings in zip(runs, names, all_results, _differing(all_results), strict=True):
        row: dict[str, Any] = {"run": name if names.count(name) == 1 else str(run)}
        row |= {field: results.get(field) for field in ("task", "set", "model", "headline", "metrics", "seconds")}
        rows.append(row | {"intervals": results.get("intervals") or {}, "settings": settings})
    return rows


def comparison_table(rows: list[dict[str, Any]]) -> Table:
    """Returns a table for the terminal: a row per run, or a column per run where there are fewer runs than figures. The
    headline metrics come first; each best figure is bold."""
    fields = [field for field in ("task", "set", "model") if len({row[field] for row in rows}) > 1]
    metrics = list(dict.fromkeys([*(row["headline"] for row in rows), *(name for row in rows for name in row["metrics"])]))
    lines = [list(map(Text, ("run", *fields, *metrics, "minutes", *rows[0]["settings"])))]
    for row in rows:
        plain = [Text(str(row[field] or "")) for field in ("run", *fields)]
        minutes = Text(f"{row['seconds'] / 60:,.1f}" if row["seconds"] is not None else "")
        lines.append([*plain, *(_score(row, name, rows) for name in metrics), minutes, *map(Text, row["settings"].values())])
    head, *body = lines if len(rows) >= len(lines[0]) else zip(*lines, strict=True)
    table = Table(header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for line in body:
        table.add_row(*line)
    return table


def _differing(all_results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Returns each run's settings, and fingerprints of its data, that are not the same in all runs."""
    each = [spelled(results.get("settings") or {}) for results in all_results]
    for settings, results in zip(each, all_results, strict=True):
        for split, source in (results.get("data") or {}).items():
            settings[f"data.{split}"] = str(source.get("fingerprint", ""))[:8]
    names = dict.fromkeys(name for settings in each for name in settings if name not in FOLLOWING)
    differing = [name for name in names if len({settings.get(name, "") for settings in each}) > 1]
    return [{name: settings.get(name, "") for name in differing} for settings in each]


def _score(row: dict[str, Any], name: str, rows: list[dict[str, Any]]) -> Text:
    if name not in row["metrics"]:
        return Text("")
    value, sure = row["metrics"][name], interval(row, name)
    best = (min if "loss" in name else max)(other["metrics"][name] for other in rows if name in other["metrics"])
    text = Text(shown(name, value), style="bold" if value == best and len(rows) > 1 else "")
    return text.append(f" ({sure})", style="dim not bold") if sure else text
