"""report.html of a fine-tuning run: metrics with intervals, mistakes, settings and data.

Reads RUN/results.json and RUN/metrics.jsonl. Sections without results are left out.
"""

from html import escape
from pathlib import Path
from typing import Any

from bertkit.atomic import read_json
from bertkit.errors import ArtifactError, DataError
from bertkit.train import page
from bertkit.train.log import read_metrics
from bertkit.train.page import BLUE, GREEN, GREY, LINE, ORANGE

CORRELATIONS = ("matthews", "pearson", "spearman")
MAX_LABELS = 20  # of the largest confusion matrix that fits a page
MAX_TEXT = 600  # characters shown of a mistake
STYLE = Path(__file__).with_name("task_report.css").read_text(encoding="utf-8")


def write_task_report(run: Path) -> Path:
    """Writes RUN/report.html."""
    results = read_results(run)
    parts = [_headline(results), _figures(results), _curves(read_metrics(run), results["headline"])]
    parts += [part(results) for part in (_confusion, _parts, _calibration, _mistakes, _search, _origin)]
    title = results.get("set") or results["task"]
    kind = f"{results['task']} · " if results.get("set") else ""
    subtitle = f"{kind}fine-tuned from {results['model']} · run {run.resolve().name}"
    return page.write_page(run / "report.html", title, subtitle, filter(None, parts), STYLE)


def read_results(run: Path) -> dict[str, Any]:
    """Reads RUN/results.json and checks that it has what every reader needs."""
    file = run / "results.json"
    if not file.is_file():
        raise ArtifactError(f"{run} has no results.json; name the folder of a fine-tuning run that came to its end")
    results = read_json(file, ArtifactError)
    missing = {"task", "model", "metrics", "headline"} - set(results)
    if missing or results["headline"] not in results["metrics"]:
        lacks = ", ".join(sorted(missing)) or f"its headline metric {results['headline']!r}"
        raise DataError(f"lacks {lacks}; expected the results of a fine-tuning run", file)
    return results


def shown(name: str, value: float) -> str:
    """Formats a metric: shares as percentages, correlations and losses as numbers."""
    if any(word in name for word in (*CORRELATIONS, "loss")) or not 0 <= value <= 1:
        return f"{value:.3f}"
    return f"{value:.1%}"


def interval(results: dict[str, Any], name: str) -> str:
    """Returns such as '89.1–92.4%', or '' where no interval was measured."""
    bounds = (results.get("intervals") or {}).get(name)
    if not bounds:
        return ""
    low, high = (shown(name, bound) for bound in bounds)
    return f"{low.removesuffix('%') if high.endswith('%') else low}–{high}"


def _headline(results: dict[str, Any]) -> str:
    """Returns the headline metric in large, with its interval drawn on a scale from 0 to 1."""
    name = results["headline"]
    value, sure = results["metrics"][name], interval(results, name)
    low, high = results["intervals"][name] if sure else (value, value)
    note = f"<span class='quiet'>95 % interval {sure}</span>" if sure else ""
    text = f"<div class='headline'><b>{shown(name, value)}</b><span>{escape(_words(name))}</span>{note}</div>"
    if not 0 <= low <= high <= 1:
        return text
    return f"{text}<div class='scale'><i style='left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%'></i></div>"


def _figures(results: dict[str, Any]) -> str:
    names = [name for name in results["metrics"] if name != results["headline"]]
    figures = {_words(name): shown(name, results["metrics"][name]) for name in names}
    notes = {_words(name): interval(results, name) for name in names if interval(results, name)}
    if chosen := results.get("threshold"):
        figures["no-answer threshold"] = f"{chosen['value']:.2f}"
        before, after = (shown("f1", chosen[name]) for name in ("before_f1", "after_f1"))
        kept = f"F1 {before} → {after}" if chosen["value"] == chosen["fitted"] else f"F1 {before}; another gave no more"
        notes["no-answer threshold"] = kept
    for name, value in (results.get("ensemble") or {}).get("metrics", {}).items():
        figures[f"{_words(name)}, all models together"] = shown(name, value)
    if results.get("seconds"):
        figures["minutes"] = f"{results['seconds'] / 60:,.1f}"
    if results.get("examples_per_second"):
        figures["examples/s"] = f"{results['examples_per_second']:,.0f}"
    return page.cards(figures, notes)


def _curves(rows: list[dict[str, Any]], headline: str) -> str:
    names = {name for row in rows for name in row}
    measured = [name for name in names if name.startswith("dev_") and name != "dev_loss"]
    scores = sorted(measured, key=lambda name: (name != f"dev_{headline}", name))
    on_dev = f"{_words(scores[0].removeprefix('dev_'))} on dev" if len(scores) == 1 else "on dev"
    panels: list[tuple[str, dict[str, str], float | None]] = [
        ("loss", {"loss": BLUE, "dev_loss": ORANGE}, 0),
        (on_dev, dict(zip(scores, (ORANGE, BLUE, GREEN, GREY), strict=False)), None),
        ("learning rate", {"lr": BLUE}, 0),
        ("tokens per second", {"tokens_per_second": BLUE}, 0),
    ]
    drawn = [page.curves(title, rows, series, floor=floor) for title, series, floor in panels if names & series.keys()]
    return page.section("Curves", page.draw(drawn)) if drawn else ""


def _confusion(results: dict[str, Any]) -> str:
    cells, labels = results.get("confusion") or [], results.get("labels") or []
    if not cells:
        return ""
    if len(cells) > MAX_LABELS:
        wrong = [(labels[i], labels[j], n) for i, row in enumerate(cells) for j, n in enumerate(row) if i != j and n]
        frequent = sorted(wrong, key=lambda line: -line[2])[:MAX_LABELS]
        return page.section("Most frequent confusions", page.table(frequent, ("gold", "answered", "times")))
    heads = [f"<th>{escape(str(label))}</th>" for label in labels]
    lines = [f"<th></th>{''.join(heads)}"]
    for place, (head, row) in enumerate(zip(heads, cells, strict=True)):
        lines.append(head + "".join(_tint(count, count / max(1, sum(row)), at == place) for at, count in enumerate(row)))
    matrix = "".join(f"<tr>{line}</tr>" for line in lines)
    note = "rows: gold; columns: answered; shares are of the row"
    return page.section("Confusion matrix", f"<div class='wide'><table class='matrix'>{matrix}</table></div>", note=note)


def _tint(count: int, share: float, right: bool) -> str:
    """Returns a cell, coloured more strongly the larger its share: blue if the answer is right, orange if it is wrong."""
    colour = f"color-mix(in srgb, var(--{'blue' if right else 'orange'}) {5 + 55 * share:.0f}%, var(--paper))"
    return f"<td style='background: {colour}'>{count:,}<small>{share:.0%}</small></td>"


def _parts(results: dict[str, Any]) -> str:
    """Returns scores by kind of entity, or by group of questions."""
    kinds = [{"group": kind, **scores} for kind, scores in (results.get("kinds") or {}).items()]
    made = ""
    for title, what, rows in ("By kind", "kind", kinds), ("Breakdown", "group", results.get("breakdown")):
        if rows:
            names = [name for name in rows[0] if name != "group"]
            lines = [[row["group"], *(_number(name, row[name]) for name in names)] for row in rows]
            made += page.section(title, page.table(lines, (what, *map(_words, names)), words=1))
    return made


def _calibration(results: dict[str, Any]) -> str:
    fitted = results.get("calibration")
    if not fitted:
        return ""
    panels = [_diagram(name, fitted[name]) for name in ("before", "after") if fitted.get(name)]
    kept = "" if fitted["temperature"] == fitted["fitted"] else ", which is no better and was not kept"
    note = f"how often answers of a confidence are right, before and after a temperature of {fitted['fitted']:.3f}{kept}"
    return page.section("Reliability", page.draw(panels, height=3.4), note=note)


def _diagram(name: str, side: dict[str, Any]) -> page.Panel:
    """Returns a panel of accuracy over confidence, dots sized by their share of the answers; the diagonal is perfect."""

    def panel(axis: Any) -> None:
        confidence, accuracy, counts = zip(*side["curve"], strict=True) if side["curve"] else ((), (), ())
        axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
        axis.plot(confidence, accuracy, color=BLUE, lw=1.4)
        axis.scatter(confidence, accuracy, s=[12 + 260 * count / sum(counts) for count in counts], color=BLUE, alpha=0.75)
        axis.set(xlim=(0, 1.03), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
        axis.set_title(f"{name} · calibration error {side['ece']:.1%}", loc="left", fontsize=10)
        axis.grid(color=LINE)

    return panel


def _mistakes(results: dict[str, Any]) -> str:
    shown_ones = [_mistake(mistake) for mistake in results.get("mistakes") or []]
    return page.section("Most confident mistakes", *shown_ones, note="red: the answer; green: gold") if shown_ones else ""


def _mistake(mistake: dict[str, Any]) -> str:
    text, sure = mistake["text"], mistake["probability"]
    cut = escape(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT].rstrip()} …")
    answer, gold = (escape(mistake[name]) for name in ("answer", "gold"))
    note = f" <span class='quiet'>{sure:.1%} sure</span>" if sure is not None else ""
    marks = f"<span class='wrong'>{answer}</span> <span class='right'>{gold}</span>{note}"
    return f"<div class='mistake'><p>{cut}</p><div>{marks}</div></div>"


def _search(results: dict[str, Any]) -> str:
    tried = sorted(results.get("search") or [], key=lambda row: -row["score"])
    names = [name for name in (tried[0] if tried else ()) if name != "score"]
    lines = [[shown(results["headline"], row["score"]), *(page.spelled(row)[name] for name in names)] for row in tried]
    head = (_words(results["headline"]), *map(_words, names))
    note = "all settings tried, best on dev first"
    return page.section("Search", page.table(lines, head, words=1), note=note) if tried else ""


def _origin(results: dict[str, Any]) -> str:
    """Returns the settings, and the data by file and fingerprint."""
    head, splits = ("split", "file", "fingerprint", "rows", "skipped"), (results.get("data") or {}).items()
    lines = [
        (name, d.get("file", ""), d.get("fingerprint", ""), *(f"{d.get(n, 0):,}" for n in head[3:])) for name, d in splits
    ]
    settings = page.spelled(results.get("settings") or {}).items()
    note = "learning rates as --lr takes them, for a width of 768"
    made = page.section("Settings", page.table(settings), note=note) if settings else ""
    return made + (page.section("Data", page.table(lines, head, words=3)) if lines else "")


def _words(name: str) -> str:
    return name.replace("_", " ").replace("f1", "F1")


def _number(name: str, value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(name, value)
