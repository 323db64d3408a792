"""report.html: a run on one page, one file: curves, results, the recipe, and what the model fills in."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bertkit.atomic import new_file
from bertkit.data.examples import ExampleSource, PretrainingBatch
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.log import read_metrics

BLUE, ORANGE, GREY = "#2563eb", "#ea580c", "#6b7280"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } .quiet { color: #6b7280; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1.2rem; }
.card { border: 1px solid #e5e7eb; border-radius: .6rem; padding: .6rem 1rem; min-width: 8rem; }
.card b { display: block; font-size: 1.3rem; font-weight: 600; }
svg { width: 100%; height: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #f3f4f6; vertical-align: top; }
td:first-child { color: #6b7280; white-space: nowrap; }
.sample { margin: .7rem 0; line-height: 1.9; } .right, .wrong { border-radius: .3rem; padding: .05rem .3rem; }
.right { background: #dcfce7; } .wrong { background: #fee2e2; } .wrong s { color: #6b7280; }
"""


def write_report(run: Path, *, samples: Sequence[str] = (), facts: dict[str, str] | None = None) -> Path:
    """Writes RUN/report.html from the run's metrics and recipe."""
    rows = read_metrics(run)
    recipe = json.loads((run / "recipe.json").read_text(encoding="utf-8"))["recipe"]
    cards = _cards(rows) | (facts or {})
    page = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(recipe['name'])}</title>",
        f"<meta name='viewport' content='width=device-width'><style>{STYLE}</style>",
        f"<h1>{html.escape(recipe['name'])}</h1><div class='quiet'>pre-training run {html.escape(run.resolve().name)}</div>",
        "<div class='cards'>"
        + "".join(f"<div class='card'>{html.escape(k)}<b>{html.escape(v)}</b></div>" for k, v in cards.items()),
        "</div><h2>Curves</h2>",
        _curves(rows),
        "<h2>Held-out text, filled in</h2><div class='quiet'>green: right; red: the model's piece, then the true one</div>",
        *(f"<div class='sample'>{sample}</div>" for sample in samples),
        "<h2>Recipe</h2><table>",
        *(f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>" for name, value in _flat(recipe)),
        "</table></html>",
    ]
    with new_file(run / "report.html") as aside:
        aside.write_text("\n".join(page), encoding="utf-8")
    return run / "report.html"


@torch.no_grad()
def filled_samples(network: Pretraining, source: ExampleSource, device: torch.device, count: int = 6) -> list[str]:
    """Some held-out examples as HTML, every hidden piece with what the model would put there."""
    row = source.batch(next(source.first(count))).to(device)
    network.eval()
    best = network.masked_logits(network.encoder(row.batch), row.places[: row.hidden]).argmax(-1).tolist()
    return list(_samples(row, best, source.tokenizer.vocabulary, count))


def _samples(row: PretrainingBatch, best: list[int], vocabulary: list[str], count: int) -> Iterator[str]:
    guesses = dict(zip(row.places[: row.hidden].tolist(), best, strict=True))
    truths = dict(zip(row.places[: row.hidden].tolist(), row.targets[: row.hidden].tolist(), strict=True))
    ids, bounds = row.batch.ids.tolist(), row.batch.boundaries.tolist()
    for begin, end in pairwise(bounds[: count + 1]):
        if end - begin > 1 and any(begin <= place < end for place in guesses):
            pieces = (_piece(place, ids[place], guesses, truths, vocabulary) for place in range(begin, end))
            yield " ".join(pieces).replace(" ##", "").replace(">##", ">")


def _piece(place: int, index: int, guesses: dict[int, int], truths: dict[int, int], vocabulary: list[str]) -> str:
    if place not in guesses:
        return html.escape(vocabulary[index])
    guess, truth = vocabulary[guesses[place]], vocabulary[truths[place]]
    if guess == truth:
        return f"<span class='right'>{html.escape(truth)}</span>"
    return f"<span class='wrong'><s>{html.escape(guess)}</s> {html.escape(truth)}</span>"


def _cards(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The figures of the last reports."""
    train: dict[str, Any] = next((row for row in reversed(rows) if "masked_loss" in row), {})
    held: dict[str, Any] = next((row for row in reversed(rows) if "held_out_loss" in row), {})
    cards = {"steps": f"{rows[-1]['step']:,}"} if rows else {}
    if train:
        minutes, speed = train["elapsed"] / 60, train["tokens"] / max(1e-9, train["elapsed"])
        cards |= {"tokens": f"{train['tokens'] / 1e6:,.1f} M", "minutes": f"{minutes:,.1f}", "tokens/s": f"{speed:,.0f}"}
    if held:
        cards |= {"held-out loss": f"{held['held_out_loss']:.3f}", "perplexity": f"{held['held_out_perplexity']:,.1f}"}
        cards |= {"accuracy": f"{held['held_out_accuracy']:.1%}"}
    if "held_out_next_accuracy" in held:
        cards |= {"next sentence": f"{held['held_out_next_accuracy']:.1%}"}
    return cards


def _curves(rows: list[dict[str, Any]]) -> str:
    """Four plots as one SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(2, 2, figsize=(9.6, 5.6), layout="constrained")
        _plot(axes[0, 0], "loss", rows, {"masked_loss": BLUE, "held_out_loss": ORANGE, "next_loss": GREY})
        _plot(axes[0, 1], "accuracy", rows, {"masked_accuracy": BLUE, "held_out_accuracy": ORANGE, "next_accuracy": GREY})
        _plot(axes[1, 0], "learning rate", rows, {"lr": BLUE})
        _plot(axes[1, 1], "tokens per second", rows, {"tokens_per_second": BLUE})
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return stream.getvalue()[stream.getvalue().index("<svg") :]


def _plot(axis: Any, title: str, rows: list[dict[str, Any]], series: dict[str, str]) -> None:
    for name, colour in series.items():
        points = [(row["step"], row[name]) for row in rows if name in row]
        if points:
            marker = "o" if name.startswith("held") else None
            axis.plot(
                *zip(*points, strict=True), color=colour, label=name.replace("_", " "), marker=marker, markersize=3, lw=1.4
            )
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel("step")
    axis.set_ylim(bottom=0)
    axis.grid(color="#f3f4f6")
    if len(series) > 1 and axis.lines:
        axis.legend(frameon=False, fontsize=8)


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", ", ".join(str(part) for part in value)
        else:
            yield f"{prefix}{name}", value
