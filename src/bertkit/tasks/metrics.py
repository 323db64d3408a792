"""Metrics of answers: plain floats from 0 to 1 (correlations from −1), 0 where there is nothing to measure.

    labels      accuracy · f1 · macro_f1 · matthews            multilabel   multilabel_f1 · multilabel_macro_f1
    numbers     pearson · spearman                             tags         entities · entity_scores, as conlleval counts
    answers     squad_scores · best_threshold, as the official script of SQuAD 2.0 counts
    certainty   reliability · expected_calibration_error · fit_temperature · bootstrap

`gold` holds the true answers and `found` those of the model, item by item.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bertkit.errors import InputError

Items = Sequence[Any] | np.ndarray
Sentences = Iterable[Iterable[str]]  # of tags
Entity = tuple[str, int, int]  # kind, begin, end: tags[begin:end]
TEMPERATURES = (0.1, 10.0)  # beyond these, a set is too small or too easy to calibrate on


def accuracy(gold: Items, found: Items) -> float:
    """The share of correct answers."""
    truth, said = _paired(gold, found)
    return _mean(truth == said)


def f1(gold: Items, found: Items) -> float:
    """F1 of class 1 against the rest; for two 0/1 tables [items, labels], the micro F1 over all cells."""
    truth, said = (side == 1 for side in _paired(gold, found))
    return float(_f1((truth & said).sum(), truth.sum(), said.sum()))


def macro_f1(gold: Items, found: Items) -> float:
    """The mean F1 of all classes that occur in gold or found."""
    return _mean(_f1(*_tallies(gold, found)))


def matthews(gold: Items, found: Items) -> float:
    """The Matthews correlation coefficient, for any number of classes (Gorodkin 2004)."""
    hits, truth, said = (tally.astype(float) for tally in _tallies(gold, found))
    total = truth.sum()
    spread = (total**2 - truth @ truth) * (total**2 - said @ said)
    return float(np.clip((hits.sum() * total - truth @ said) / np.sqrt(spread), -1, 1)) if spread > 0 else 0.0


def pearson(gold: Items, found: Items) -> float:
    """The linear correlation; 0 if either side is constant."""
    sides = [np.asarray(side, float) for side in _paired(gold, found)]
    if not all(len(side) and np.isfinite(side).all() and np.ptp(side) > 0 for side in sides):
        return 0.0
    x, y = (side - side.mean() for side in sides)
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(gold: Items, found: Items) -> float:
    """The correlation of the ranks; equal values share their mean rank."""
    return pearson(*(_ranks(side) for side in _paired(gold, found)))


def multilabel_macro_f1(gold: Items, found: Items) -> float:
    """The mean F1 of the labels; one that never occurs counts as 0."""
    truth, said = (side.astype(bool) for side in _paired(gold, found))
    return _mean(np.atleast_1d(_f1((truth & said).sum(0), truth.sum(0), said.sum(0))))


def confusion(gold: Items, found: Items, classes: int) -> list[list[int]]:
    """Returns how often each class (row) was answered with each class (column)."""
    truth, said = (side.astype(int) for side in _paired(gold, found))
    return np.bincount(truth * classes + said, minlength=classes**2).reshape(classes, classes).tolist()


def entities(tags: Iterable[str]) -> list[Entity]:
    """Returns the entities of a sentence tagged in IOB1, IOB2, BIOES or BILOU; with plain labels, each labelled word is one.

    As in conlleval, no sequence is invalid: a tag continues the entity before it only if it is I- or E- and that entity is
    still open (B- or I-) and of the same kind; any other tag but O begins a new entity.
    """
    found: list[Entity] = []
    open_kind = None
    for place, (mark, kind) in enumerate(map(_split, tags)):
        if mark in "IE" and kind == open_kind:
            found[-1] = (kind, found[-1][1], place + 1)
        elif mark != "O":
            found.append((kind, place, place + 1))
        open_kind = kind if mark in "BI" else None
    return found


def entity_counts(gold: Sentences, found: Sentences) -> np.ndarray:
    """Returns [sentences, 3]: entities correct, in gold, in found. With `entity_f1` as the metric, bootstrap takes it."""
    pairs = [(set(entities(truth)), set(entities(said))) for truth, said in zip(gold, found, strict=True)]
    return np.array([(len(truth & said), len(truth), len(said)) for truth, said in pairs], np.int64).reshape(-1, 3)


def entity_f1(counts: np.ndarray) -> float:
    """F1 over the sentences counted by `entity_counts`."""
    return float(_f1(*counts.sum(0)))


def entity_scores(gold: Sentences, found: Sentences) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Returns precision, recall and F1 over tagged sentences, and the same per kind with its counts in gold and found."""
    right, wanted, given = Counter[str](), Counter[str](), Counter[str]()
    for truth, said in zip(map(entities, gold), map(entities, found), strict=True):
        right.update(kind for kind, *_ in set(truth) & set(said))
        wanted.update(kind for kind, *_ in truth)
        given.update(kind for kind, *_ in said)
    each = {kind: (right[kind], wanted[kind], given[kind]) for kind in sorted(wanted | given)}
    kinds = {kind: _precision_recall(*n) | {"count": n[1], "found": n[2]} for kind, n in each.items()}
    return _precision_recall(right.total(), wanted.total(), given.total()), kinds


def normalize_answer(text: str) -> str:
    """Normalises an answer as SQuAD compares it: lower case, no punctuation, no articles, single spaces."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def answer_exact(gold: Sequence[str], answer: str) -> float:
    """Returns 1 if the answer is one of the gold ones, or empty where there are none; else 0."""
    return float(normalize_answer(answer) in _gold_answers(gold))


def answer_f1(gold: Sequence[str], answer: str) -> float:
    """Returns the best word F1 with one of the gold answers; if there are none, 1 for an empty answer."""
    said = normalize_answer(answer).split()
    return max(_overlap(truth.split(), said) for truth in _gold_answers(gold))


def squad_scores(gold: Sequence[Sequence[str]], answers: Sequence[str]) -> dict[str, float]:
    """Returns exact match and F1 over questions; if some have no answer (an empty tuple), also for each kind of question."""
    pairs = list(zip(gold, answers, strict=True))
    exact, overlap = (np.array([score(*pair) for pair in pairs], float) for score in (answer_exact, answer_f1))
    scores = {"exact": _mean(exact), "f1": _mean(overlap)}
    answerable = np.array([len(truth) > 0 for truth in gold], bool)
    if not answerable.all():
        scores["has_answer_exact"], scores["has_answer_f1"] = _mean(exact[answerable]), _mean(overlap[answerable])
        scores["no_answer_accuracy"] = _mean(exact[~answerable])
    return scores


def best_threshold(gold: Sequence[Sequence[str]], answers: Sequence[str], null_margins: Items) -> float:
    """Returns the threshold with the best F1, where a question is left unanswered if its margin is above the threshold.

    The margin is the score of "no answer" minus that of the best span; `answers` are the best spans. One sweep answers the
    questions one after the other in the order of their margins; a threshold can lie only between different margins.
    """
    margins = np.asarray(null_margins, float)
    silent = np.array([answer_f1(truth, "") for truth in gold])
    gains = np.array([answer_f1(truth, answer) for truth, answer in zip(gold, answers, strict=True)]) - silent
    order = np.argsort(margins, kind="stable")
    thresholds = np.append(np.nextafter(margins[order[0]], -np.inf), margins[order])
    totals = silent.sum() + np.append(0, np.cumsum(gains[order]))
    apart = np.append(np.diff(thresholds) > 0, True)
    return float(thresholds[np.where(apart, totals, -np.inf).argmax()])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns the vectors [N, D] scaled to length 1, so that dot products are cosines."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def reliability(confidence: Items, right: Items, bins: int = 10) -> list[tuple[float, float, int]]:
    """Returns (mean confidence, accuracy, count) for each of `bins` equal intervals of confidence that has items."""
    sure, good = (np.asarray(side, float) for side in _paired(confidence, right))
    places = np.clip(np.ceil(sure * bins) - 1, 0, bins - 1)
    steps = [places == place for place in np.unique(places)]
    return [(float(sure[step].mean()), float(good[step].mean()), int(step.sum())) for step in steps]


def expected_calibration_error(confidence: Items, right: Items, bins: int = 15) -> float:
    """The distance between confidence and accuracy, averaged over the items (Guo et al. 2017)."""
    curve = reliability(confidence, right, bins)
    return sum(count * abs(sure - good) for sure, good, count in curve) / max(1, len(confidence))


def fit_temperature(logits: np.ndarray, gold: Items) -> float:
    """Returns the number to divide the logits [items, classes] by for the highest likelihood of gold.

    The loss is convex in 1/temperature, so its slope crosses zero once, and bisection finds where.
    """
    above = logits - np.take_along_axis(logits, np.asarray(gold, int).reshape(-1, 1), 1)
    if not above.any():
        return 1.0
    cold, hot = np.log(TEMPERATURES)
    for _ in range(40):
        middle = (cold + hot) / 2
        slope = (softmax(above / np.exp(middle)) * above).sum()
        cold, hot = (middle, hot) if slope > 0 else (cold, middle)
    return float(np.exp(middle))


def bootstrap(metric: Callable[..., Any], *columns: Items, samples: int = 1000) -> tuple[float, float]:
    """Returns the 95 % interval of a metric over items resampled with replacement, all columns together."""
    generator, tables = np.random.default_rng(0), [np.asarray(column) for column in columns]
    size = len(tables[0])
    drawn = (generator.integers(size, size=size) for _ in range(samples))
    scores = [metric(*(table[rows] for table in tables)) for rows in drawn]
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


_NAMED = (accuracy, f1, macro_f1, matthews, pearson, spearman, multilabel_macro_f1)
METRICS: dict[str, Callable[[Items, Items], float]] = {metric.__name__: metric for metric in _NAMED}
METRICS["multilabel_f1"] = f1


def _paired(gold: Items, found: Items) -> tuple[np.ndarray, np.ndarray]:
    if len(gold) != len(found):
        raise InputError(f"{len(gold)} gold items and {len(found)} found ones; a metric needs one answer an item")
    return np.asarray(gold), np.asarray(found)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0


def _f1(hits: Any, gold: Any, found: Any) -> np.ndarray:
    """The harmonic mean of hits/found and hits/gold."""
    total = np.asarray(gold + found, float)
    return np.divide(2.0 * hits, total, out=np.zeros_like(total), where=total > 0)


def _precision_recall(hits: int, gold: int, found: int) -> dict[str, float]:
    return {"precision": hits / max(1, found), "recall": hits / max(1, gold), "f1": float(_f1(hits, gold, found))}


def _tallies(gold: Items, found: Items) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, for each class that occurs, how often it is correct, in gold, in found."""
    classes, codes = np.unique(np.concatenate(_paired(gold, found)), return_inverse=True)
    truth, said = np.split(codes, 2)
    hits, gold, found = (np.bincount(one, minlength=len(classes)) for one in (truth[truth == said], truth, said))
    return hits, gold, found


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return means[places]


def _split(tag: str) -> tuple[str, str]:
    """Returns mark and kind; a plain label is an entity of one word."""
    mark, dash, kind = tag.partition("-")
    mark = {"L": "E", "U": "S"}.get(mark, mark) if dash else mark  # BILOU
    return (mark, kind) if mark in ("B", "I", "E", "S", "O") else ("S", tag)


def _gold_answers(gold: Sequence[str]) -> list[str]:
    """Returns the normalised answers that are not empty; if there are none, the empty answer."""
    return [bare for bare in map(normalize_answer, gold) if bare] or [""]


def _overlap(gold: list[str], said: list[str]) -> float:
    if not gold or not said:
        return float(gold == said)
    return float(_f1((Counter(gold) & Counter(said)).total(), len(gold), len(said)))
