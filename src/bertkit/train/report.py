"""report.html of a pre-training run, one page in one file: results, curves, masks filled in, and the recipe."""

import html
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bertkit.atomic import read_json
from bertkit.data.examples import ExampleSource, PretrainingBatch
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.log import read_metrics
from bertkit.train.page import BLUE, GREEN, GREY, ORANGE, cards, curves, draw, section, spelled, table, write_page


def write_report(run: Path, *, samples: Sequence[str] = ()) -> Path:
    """Writes RUN/report.html from the run's metrics and recipe."""
    rows, recipe = read_metrics(run), read_json(run / "recipe.json")["recipe"]
    shown = [f"<div class='sample'>{sample}</div>" for sample in samples]
    filler = "generator" if recipe["objective"] == "replaced" else "model"
    note = f"green: right; red: the {filler}'s piece, then the true one" if samples else "nothing was held out"
    parts = [
        cards(_figures(rows)),
        section("Curves", _curves(rows)),
        section("Held-out text, filled in", *shown, note=note),
        section("Recipe", table(spelled(recipe).items())),
    ]
    return write_page(run / "report.html", recipe["name"], f"pre-training run {run.resolve().name}", parts)


@torch.no_grad()
def filled_samples(network: Pretraining, source: ExampleSource, device: torch.device, count: int = 6) -> list[str]:
    """Returns held-out examples as HTML, each masked piece with the model's guess."""
    row = source.batch(next(source.first(count))).to(device)
    network.eval()
    best = network.masked_logits(network.encoder(row.batch, row.places[: row.hidden])).argmax(-1).tolist()
    return list(_samples(row, best, source.tokenizer.texts))


def _samples(row: PretrainingBatch, best: list[int], texts: list[str]) -> Iterator[str]:
    pieces = [html.escape(texts[index]) for index in row.batch.ids.tolist()]
    places, targets = row.places[: row.hidden].tolist(), row.targets[: row.hidden].tolist()
    for place, guess, truth in zip(places, best, targets, strict=True):
        pieces[place] = _told(html.escape(texts[guess]), html.escape(texts[truth]))
    for begin, end in pairwise(row.batch.boundaries.tolist()):
        if any(begin <= place < end for place in places):
            yield "".join(pieces[begin:end]).strip()


def _told(guess: str, truth: str) -> str:
    return f"<span class='right'>{truth}</span>" if guess == truth else f"<span class='wrong'><s>{guess}</s> {truth}</span>"


def _figures(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the latest figures from the metrics."""
    train: dict[str, Any] = next((row for row in reversed(rows) if "lr" in row), {})
    held: dict[str, Any] = next((row for row in reversed(rows) if "held_out_loss" in row), {})
    figures = {"steps": f"{rows[-1]['step']:,}"} if rows else {}
    if train:
        minutes, speed = train["elapsed"] / 60, train["tokens"] / max(1e-9, train["elapsed"])
        figures |= {"tokens": f"{train['tokens'] / 1e6:,.1f} M", "minutes": f"{minutes:,.1f}", "tokens/s": f"{speed:,.0f}"}
    if held:
        figures |= {"held-out loss": f"{held['held_out_loss']:.3f}", "accuracy": f"{held['held_out_accuracy']:.1%}"}
    if "held_out_perplexity" in held:
        figures |= {"perplexity": f"{held['held_out_perplexity']:,.1f}"}
    if "held_out_next_accuracy" in held:
        figures |= {"next sentence": f"{held['held_out_next_accuracy']:.1%}"}
    return figures


def _curves(rows: list[dict[str, Any]]) -> str:
    """Returns four plots as one SVG."""
    told = {"masked": BLUE, "token": GREEN, "held_out": ORANGE, "next": GREY, "generator": GREY}
    panels = {kind: {f"{name}_{kind}": colour for name, colour in told.items()} for kind in ("loss", "accuracy")}
    del panels["loss"]["generator_loss"]  # far larger than the token loss, which is what matters
    panels |= {"learning rate": {"lr": BLUE}, "tokens per second": {"tokens_per_second": BLUE}}
    return draw([curves(title, rows, series) for title, series in panels.items()])
