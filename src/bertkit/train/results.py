"""How good a fine-tuned model is: metrics with intervals, its mistakes, and calibration of its probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertkit.data.records import Question, Words, halves, texts
from bertkit.tasks import metrics
from bertkit.tasks.task import Task, TaskSettings

FEW = 100  # with fewer dev records, nothing is fitted on them
MOST = 20  # mistakes to show
Sides = tuple[np.ndarray, np.ndarray]  # indices of the records to fit on, and to measure on
Fitted = tuple[TaskSettings, dict[str, Any]]  # the settings to keep, and figures for the report


def summarize(task: Task, records: Sequence[Any], answers: Sequence[Any]) -> dict[str, Any]:
    """Returns everything about the answers that a report shows."""
    gold, found = task.gold(records), [task.value(answer) for answer in answers]
    several = task.loss == "classes" and task.pooled
    return {
        "metrics": task.score(records, answers),
        "headline": task.headline,
        "intervals": {task.headline: _interval(task, gold, found)},
        "labels": list(task.settings.labels) if several else None,
        "confusion": metrics.confusion(gold, found, task.outputs) if several else None,
        "kinds": metrics.entity_scores(gold, found)[1] if isinstance(records[0], Words) else None,
        "breakdown": list(_by_length(gold, found)) if isinstance(records[0], Question) else None,
        "mistakes": _mistakes(task, records, answers),
    }


def calibrate(task: Task, records: Sequence[Any], answers: Sequence[Any]) -> Fitted:
    """Fits a temperature, or for qa a no-answer threshold, on one half of dev; keeps it only if it helps on the other."""
    first, second = (np.array(half, np.int64) for half in halves(records))
    if min(len(first), len(second)) < FEW // 2:
        return task.settings, {}
    if (scores := task.confidence(answers)) is not None:
        return _temperature(task.settings, scores, np.array(task.gold(records)), (first, second))
    if task.settings.threshold is not None and isinstance(records[0], Question):
        return _threshold(task, records, answers, (first, second))
    return task.settings, {}


def _temperature(settings: TaskSettings, logits: np.ndarray, gold: np.ndarray, sides: Sides) -> Fitted:
    first, second = sides
    temperature = metrics.fit_temperature(logits[first], gold[first])
    before, after = (_certainty(metrics.softmax(logits[second] / t), gold[second]) for t in (1.0, temperature))
    helps = after["ece"] < before["ece"]
    figures = {"temperature": temperature if helps else 1.0, "fitted": temperature, "before": before, "after": after}
    return replace(settings, temperature=temperature if helps else 1.0), {"calibration": figures}


def _certainty(chances: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    confidence, right = chances.max(1), chances.argmax(1) == gold
    ece = metrics.expected_calibration_error(confidence, right)
    return {"ece": ece, "curve": metrics.reliability(confidence, right)}


def _threshold(task: Task, records: Sequence[Any], answers: Sequence[Any], sides: Sides) -> Fitted:
    spans = [answer.best[0].text if answer.best else "" for answer in answers]
    rows = list(zip(task.gold(records), spans, (answer.null_margin for answer in answers), strict=True))
    fit, test = ([rows[index] for index in side] for side in sides)
    threshold = metrics.best_threshold(*map(list, zip(*fit, strict=True)))
    f1, given = {}, task.settings.threshold or 0.0
    for name, value in (("before_f1", given), ("after_f1", threshold)):
        kept = ["" if margin > value else text for _, text, margin in test]
        f1[name] = metrics.squad_scores([truth for truth, _, _ in test], kept)["f1"]
    value = threshold if f1["after_f1"] > f1["before_f1"] else given
    return replace(task.settings, threshold=value), {"threshold": {"value": value, "fitted": threshold, **f1}}


def _interval(task: Task, gold: list[Any], found: list[Any]) -> tuple[float, float]:
    """Returns the 95% interval of the headline metric, by bootstrap over records."""
    name = task.headline
    if name.startswith("entity"):
        return metrics.bootstrap(metrics.entity_f1, metrics.entity_counts(gold, found))
    if task.loss == "picks" and not task.layout.by_unit:
        score = metrics.answer_f1 if name == "f1" else metrics.answer_exact
        return metrics.bootstrap(np.mean, list(map(score, gold, found)))
    return metrics.bootstrap(metrics.METRICS[name], gold, found)


def _by_length(gold: list[Any], found: list[Any]) -> Iterator[dict[str, Any]]:
    """Yields the scores of questions grouped by the number of words in their first gold answer."""
    words = np.array([len(truth[0].split()) if truth else 0 for truth in gold])
    groups = [("no answer", 0, 0), ("1–2 words", 1, 2), ("3–5 words", 3, 5), ("6 words and more", 6, 10**9)]
    for name, low, high in groups:
        members = np.flatnonzero((words >= low) & (words <= high))
        if len(members):
            scores = metrics.squad_scores([gold[i] for i in members], [found[i] for i in members])
            yield {"group": name, "count": len(members), "exact": scores["exact"], "f1": scores["f1"]}


def _mistakes(task: Task, records: Sequence[Any], answers: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns wrong answers, most confident first; for numbers, furthest off. A cosine is not compared with a class."""
    labels = task.settings.labels
    wrong = list[tuple[float, Any, str, str, float | None]]()
    for record, answer, truth in zip(records, answers, task.gold(records), strict=True):
        told = task.value(answer)
        if isinstance(told, float):
            if told != truth and task.settings.objective != "classes":
                wrong.append((abs(told - truth), record, f"{truth:g}", f"{told:.2f}", None))
        elif not metrics.answer_exact(truth, told) if isinstance(record, Question) else told != truth:
            sure = _sureness(answer)
            wrong.append((sure, record, _spelled(truth, labels, record), _spelled(told, labels, record), sure))
    wrong.sort(key=lambda item: -item[0])
    return [
        {"text": " ‖ ".join(texts(record))[:1000], "gold": truth, "answer": told, "probability": sure}
        for _, record, truth, told, sure in wrong[:MOST]
    ]


def _sureness(answer: Any) -> float:
    """Returns how sure the model was of its whole answer."""
    if hasattr(answer, "probability"):
        return answer.probability
    each = answer.probabilities
    if isinstance(each, dict):  # of labels that are predicted independently
        each = tuple(max(chance, 1 - chance) for chance in each.values())
    return float(min(each) if isinstance(each, tuple) else max(each))


def _spelled(value: Any, labels: Sequence[str], record: Any) -> str:
    """Formats an answer: a tagged sentence as its entities, flags as the labels that are set."""
    if isinstance(record, Words):
        found = (f"{' '.join(record.words[a:b])} ({kind})" for kind, a, b in metrics.entities(value))
        return ", ".join(found) or "nothing"
    if isinstance(value, tuple) and labels:
        return ", ".join(label for label, yes in zip(labels, value, strict=True) if yes) or "nothing"
    if isinstance(value, tuple):
        return " or ".join(dict.fromkeys(value)) or "no answer"
    return labels[value] if isinstance(value, int) and labels else str(value) or "no answer"
