import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import InputError
from bertkit.tasks import metrics

NAMES = ["PER", "LOC"]
TAGS = ["O", *(f"{mark}-{name}" for mark in "BIES" for name in NAMES)]
numbers = st.floats(-100, 100).map(lambda x: round(x, 2))
pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
sentences = st.lists(st.lists(st.sampled_from(TAGS), max_size=8), max_size=5)


def same(found, expected):
    assert isinstance(found, float)
    assert found == pytest.approx(expected, abs=1e-9)


# labels and numbers


@given(pairs)
def test_labels_as_scikit_learn(items):
    gold, found = zip(*items, strict=True)
    same(metrics.accuracy(gold, found), sklearn.metrics.accuracy_score(gold, found))
    same(metrics.macro_f1(gold, found), sklearn.metrics.f1_score(gold, found, average="macro", zero_division=0))
    binary = [int(x == 1) for x in gold], [int(x == 1) for x in found]
    same(metrics.f1(gold, found), sklearn.metrics.f1_score(*binary, zero_division=0))
    if len({*gold, *found}) > 1:
        same(metrics.matthews(gold, found), sklearn.metrics.matthews_corrcoef(gold, found))
    assert metrics.confusion(gold, found, 4) == sklearn.metrics.confusion_matrix(gold, found, labels=range(4)).tolist()
    words = [[f"label {x}" for x in side] for side in (gold, found)]
    same(metrics.macro_f1(*words), metrics.macro_f1(gold, found))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_numbers_as_scipy(items):
    gold, found = zip(*items, strict=True)
    if len(set(gold)) > 1 and len(set(found)) > 1:
        same(metrics.pearson(gold, found), scipy.stats.pearsonr(gold, found).statistic)
        same(metrics.spearman(gold, found), scipy.stats.spearmanr(gold, found).statistic)


@given(st.integers(1, 20), st.integers(1, 4), st.randoms(use_true_random=False))
def test_multilabel_as_scikit_learn(rows, labels, random):
    gold, found = (np.array([[random.random() < 0.4 for _ in range(labels)] for _ in range(rows)]) for _ in range(2))
    for average, metric in ("micro", metrics.f1), ("macro", metrics.multilabel_macro_f1):
        if labels > 1:  # one column scikit-learn takes for a binary task
            same(metric(gold, found), sklearn.metrics.f1_score(gold, found, average=average, zero_division=0))
        same(metric(gold, gold & False), 0.0)


@pytest.mark.parametrize("name", metrics.METRICS)
@pytest.mark.parametrize("found", [[], [0, 0, 0], [1, 1, 1], [0.1, 0.1, 0.1]], ids=str)
def test_nothing_to_measure_is_zero(name, found):
    gold = [0, 1, 0][: len(found)]
    if "multilabel" in name:
        gold, found = [[g] for g in gold], [[round(f)] for f in found]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score = metrics.METRICS[name](gold, found)
    assert math.isfinite(score)
    if not found or name in ("matthews", "pearson", "spearman"):
        assert score == 0.0


def test_a_missing_answer_is_an_error():
    with pytest.raises(InputError, match="2 gold items and 1 found"):
        metrics.accuracy([1, 2], [1])


# entities


def conlleval(tags):
    """The published tables: which pairs of neighbours end a chunk and which begin one."""
    split = [("O", "")] + [tuple((tag + "-").split("-")[:2]) for tag in tags] + [("O", "")]
    begins, found = [], []
    for place, ((before, old), (mark, kind)) in enumerate(pairwise(split)):
        ends = before in "ES" or before + mark in ("BB", "BS", "BO", "IB", "IS", "IO") or (before != "O" and old != kind)
        if ends and begins:
            found.append((old, begins.pop(), place))
        opens = mark in "BS" or before + mark in ("EE", "EI", "SE", "SI", "OE", "OI") or (mark != "O" and old != kind)
        if opens:
            begins.append(place)
    return found


@given(st.lists(st.sampled_from(TAGS), max_size=10))
def test_entities_as_conlleval(tags):
    assert metrics.entities(tags) == conlleval(tags)


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("", []),
        ("O O", []),
        ("I-PER I-PER O I-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # IOB1
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # IOB2
        ("B-PER E-PER O S-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # BIOES
        ("B-PER I-PER L-PER U-LOC U", [("PER", 0, 3), ("LOC", 3, 4), ("U", 4, 5)]),  # BILOU
        ("I-PER B-PER I-LOC I-PER", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3), ("PER", 3, 4)]),  # adjacent
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-PER I-PER E-PER E-PER", [("PER", 0, 1), ("PER", 1, 3), ("PER", 3, 4)]),
        ("NN O B-é-x I-é-x VB", [("NN", 0, 1), ("é-x", 2, 4), ("VB", 4, 5)]),  # plain labels, and kinds with a dash
    ],
)
def test_entities_by_hand(tags, entities):
    assert metrics.entities(tags.split()) == entities


@given(st.lists(st.tuples(st.sampled_from(["", *NAMES]), st.integers(1, 3)), max_size=6))
def test_iob1_iob2_and_bioes_say_the_same(stretches):
    one, two, five, before = [], [], [], ""
    for kind, length in stretches:
        if not kind:
            one, two, five = one + ["O"] * length, two + ["O"] * length, five + ["O"] * length
        else:
            inside = [f"I-{kind}"] * (length - 1)
            one += [f"{'B' if kind == before else 'I'}-{kind}", *inside]
            two += [f"B-{kind}", *inside]
            five += [f"B-{kind}", *inside[1:], f"E-{kind}"] if inside else [f"S-{kind}"]
        before = kind
    assert metrics.entities(one) == metrics.entities(two) == metrics.entities(five)


def test_entity_scores_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "B-LOC"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "I-LOC"]]  # one right, one too short, two run together
    overall, kinds = metrics.entity_scores(gold, found)
    assert overall == pytest.approx({"precision": 1 / 3, "recall": 1 / 4, "f1": 2 / 7})
    assert kinds["PER"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 1, "found": 1}
    assert kinds["LOC"] == pytest.approx({"precision": 1 / 2, "recall": 1 / 3, "f1": 2 / 5, "count": 3, "found": 2})
    assert metrics.entity_scores([], []) == ({"precision": 0.0, "recall": 0.0, "f1": 0.0}, {})


@given(sentences)
def test_entity_counts_agree_with_the_scores(gold):
    found = [tags[::-1] for tags in gold]
    same(metrics.entity_f1(metrics.entity_counts(gold, found)), metrics.entity_scores(gold, found)[0]["f1"])


# answers


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The  Cat!", "cat"),
        ("an A-team", "ateam"),
        ("a b. c", "b c"),
        ("“Ärger”", "“ärger”"),
        ("the", ""),
        ("\t10,000\n", "10000"),
    ],
)
def test_answers_are_compared_bare(text, bare):
    assert metrics.normalize_answer(text) == bare


def test_the_best_of_several_gold_answers_counts():
    assert metrics.answer_exact(("in Paris", "Paris"), "the Paris.") == 1.0
    same(metrics.answer_f1(("in old Paris", "Lyon"), "in Paris"), 0.8)
    same(metrics.answer_f1(("yes yes no",), "yes yes yes"), 2 / 3)
    assert metrics.answer_f1(("Paris",), "") == metrics.answer_f1((), "Paris") == 0.0
    assert metrics.answer_f1((), "") == metrics.answer_exact((), "") == metrics.answer_exact(("the",), "") == 1.0
    assert metrics.answer_f1(("東京",), "東京") == 1.0


def test_squad_scores_by_hand():
    assert metrics.squad_scores([("a cat",), ("dog",)], ["cat", ""]) == {"exact": 0.5, "f1": 0.5}
    scores = metrics.squad_scores([("black cat",), (), ()], ["cat", "", "dog"])
    parts = {"has_answer_exact": 0.0, "has_answer_f1": 2 / 3, "no_answer_accuracy": 0.5}
    assert scores == pytest.approx({"exact": 1 / 3, "f1": 5 / 9, **parts})
    assert metrics.squad_scores([(), ()], ["", ""])["no_answer_accuracy"] == 1.0
    assert metrics.squad_scores([], []) == {"exact": 0.0, "f1": 0.0}


answered = st.tuples(st.sampled_from([(), ("red fox",), ("red", "the fox")]), st.sampled_from(["", "fox", "red fox", "dog"]))


@given(st.lists(st.tuples(answered, st.integers(-3, 3)), min_size=1, max_size=12))
def test_best_threshold_as_brute_force(items):
    (gold, answers), margins = zip(*(pair for pair, _ in items), strict=True), [margin for _, margin in items]

    def score(threshold):
        kept = [answer if margin <= threshold else "" for answer, margin in zip(answers, margins, strict=True)]
        return metrics.squad_scores(gold, kept)["f1"]

    same(score(metrics.best_threshold(gold, answers, margins)), max(map(score, (-10, *margins))))


# certainty


def test_reliability_by_hand():
    curve = metrics.reliability([0.0, 0.05, 0.95, 1.0], [False, True, True, True])
    assert curve == [(pytest.approx(0.025), 0.5, 2), (pytest.approx(0.975), 1.0, 2)]
    same(metrics.expected_calibration_error([0.0, 0.05, 0.95, 1.0], [0, 1, 1, 1], bins=10), 0.25)
    assert metrics.reliability([], []) == []
    assert metrics.expected_calibration_error([], []) == 0.0


def test_softmax_of_large_numbers():
    assert metrics.softmax(np.array([[1000.0, 1000.0]])).tolist() == [[0.5, 0.5]]


@given(st.integers(0, 1000), st.floats(0.3, 3))
@settings(max_examples=20)
def test_temperature_as_a_fine_grid(seed, scale):
    generator = np.random.default_rng(seed)
    logits, gold = scale * generator.normal(size=(60, 3)), generator.integers(3, size=60)
    gold = np.where(generator.random(60) < 0.6, logits.argmax(1), gold)

    def loss(temperature):
        return -np.log(metrics.softmax(logits / temperature)[np.arange(60), gold]).mean()

    grid = np.exp(np.linspace(*np.log(metrics.TEMPERATURES), 500))
    assert loss(metrics.fit_temperature(logits, gold)) <= min(map(loss, grid)) + 1e-9


def test_temperature_without_evidence():
    assert metrics.fit_temperature(np.ones((4, 2)), [0, 1, 0, 1]) == 1.0
    assert metrics.fit_temperature(np.array([[5.0, 0.0]]), [0]) == pytest.approx(metrics.TEMPERATURES[0])


def test_bootstrap_holds_the_score_and_narrows():
    generator = np.random.default_rng(0)
    gold = generator.integers(2, size=400)
    found = np.where(generator.random(400) < 0.8, gold, 1 - gold)
    low, high = metrics.bootstrap(metrics.accuracy, gold, found)
    assert low < metrics.accuracy(gold, found) < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.8 * 0.2 / 400), rel=0.1)
    assert (low, high) == metrics.bootstrap(metrics.accuracy, gold.tolist(), found.tolist())
    wider = metrics.bootstrap(metrics.accuracy, gold[:50], found[:50])
    assert wider[1] - wider[0] > high - low


def test_bootstrap_takes_any_metric():
    assert metrics.bootstrap(np.mean, [0.25, 0.25, 0.25], samples=5) == (0.25, 0.25)
    assert metrics.bootstrap(metrics.accuracy, ["a", "b"], ["a", "b"], samples=5) == (1.0, 1.0)
    counts = metrics.entity_counts([["B-X"], ["O"]], [["B-X"], ["B-X"]])
    assert metrics.bootstrap(metrics.entity_f1, counts, samples=50) == (0.0, 1.0)
