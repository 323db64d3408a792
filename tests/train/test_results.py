"""What a model is worth: fitted numbers are kept only where they help, and everything told is plain JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.records import RECORDS, SENTENCES

from bertkit.data.records import Question, Record, Words, halves
from bertkit.tasks import TASKS, metrics
from bertkit.tasks.choice import Chosen
from bertkit.tasks.classification import Labelled
from bertkit.tasks.qa import Answered, Span
from bertkit.tasks.similarity import Compared
from bertkit.tasks.tagging import Tagged
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer
from bertkit.train.results import FEW, calibrate, summarize


@pytest.fixture(scope="module")
def pieces():
    words = sorted({word for text in [*SENTENCES, "where did it go ? who is animal"] for word in text.split()})
    return Tokenizer.from_vocabulary([*SPECIALS, *words], cased=False)


def learned(name, **changes):
    kind = TASKS[name]
    return kind(kind.learn(TaskSettings(task=name, max_length=32, **changes), RECORDS[name]))


def classified(draw, many, sharpness, *, by_half=None):
    """Records whose labels are drawn from the true chances, and answers that are `sharpness` times too sure."""
    task = TASKS["classification"](TaskSettings(labels=("a", "b", "c")))
    logits = draw.normal(size=(many, 3)) * 1.5
    chances = metrics.softmax(logits)
    gold = [int(draw.choice(3, p=row)) for row in chances]
    records = [Record(f"text {i}", label="abc"[label]) for i, label in enumerate(gold)]
    factors = np.full(many, sharpness)
    if by_half is not None:
        for half, factor in zip(halves(records), by_half, strict=True):
            factors[half] = factor
    return task, records, task.answers(records, [], [[row[None]] for row in logits * factors[:, None]])


@pytest.mark.parametrize("sharpness", [5.0, 0.2])
def test_a_temperature_mends_answers_that_are_too_sure_or_not_sure_enough(sharpness):
    task, records, answers = classified(np.random.default_rng(0), 3000, sharpness)
    settings, told = calibrate(task, records, answers)
    found = told["calibration"]
    assert settings.temperature == found["temperature"] == found["fitted"] == pytest.approx(sharpness, rel=0.15)
    assert found["after"]["ece"] < 0.5 * found["before"]["ece"]
    assert replace(settings, temperature=1.0) == task.settings  # nothing else is changed
    json.dumps(told)


def test_what_is_measured_is_the_other_half():
    task, records, answers = classified(np.random.default_rng(1), 1000, 4.0)
    settings, told = calibrate(task, records, answers)
    _, second = halves(records)
    for t, name in ((1.0, "before"), (settings.temperature, "after")):
        logits = np.log([list(answers[i].probabilities.values()) for i in second]) / t
        chances, gold = metrics.softmax(logits), np.array(task.gold(records))[second]
        ece = metrics.expected_calibration_error(chances.max(1), chances.argmax(1) == gold)
        assert told["calibration"][name]["ece"] == pytest.approx(ece)


def test_a_temperature_that_hurts_is_not_kept():
    """The first half is far too sure, the second just right: what helps the one spoils the other."""
    task, records, answers = classified(np.random.default_rng(2), 3000, 1.0, by_half=(6.0, 1.0))
    settings, told = calibrate(task, records, answers)
    assert told["calibration"]["fitted"] > 3
    assert told["calibration"]["after"]["ece"] > told["calibration"]["before"]["ece"]
    assert settings == task.settings and told["calibration"]["temperature"] == 1.0


def test_calibrated_again_it_is_the_same():
    """Answers that were made with a temperature give back the logits that it divided."""
    task, records, answers = classified(np.random.default_rng(3), 1000, 4.0)
    settings, told = calibrate(task, records, answers)
    warm = TASKS["classification"](settings)
    logits = [[np.log([[*answer.probabilities.values()]])] for answer in answers]
    again, told_again = calibrate(warm, records, warm.answers(records, [], logits))
    assert again.temperature == pytest.approx(settings.temperature, rel=1e-6)
    assert told_again["calibration"]["after"]["ece"] == pytest.approx(told["calibration"]["after"]["ece"])


def test_of_few_records_nothing_is_fitted():
    task, records, answers = classified(np.random.default_rng(4), FEW - 10, 5.0)
    assert calibrate(task, records, answers) == (task.settings, {})
    same = [replace(record, text="always the same") for record in records * 5]  # all of them in one half
    assert calibrate(task, same, answers * 5) == (task.settings, {})


def asked(draw, many, shift, *, by_half=None):
    """Questions, half of them impossible, whose margins tell them apart around `shift`, not around 0."""
    task = TASKS["qa"](TaskSettings(task="qa", threshold=0.0))
    records, answers = [], []
    for number in range(many):
        impossible = bool(draw.integers(2))
        context = f"the cat sat {number}"
        records.append(Question("who ?", context, () if impossible else (("cat", 4),), impossible))
    shifts = np.full(many, float(shift))
    if by_half is not None:
        for half, value in zip(halves(records), by_half, strict=True):
            shifts[half] = value
    for record, moved in zip(records, shifts, strict=True):
        margin = float(moved + (2 if record.impossible else -2) + draw.normal())
        best = [Span("cat", 4, 7, 0.5)]
        answers.append(Answered(*(("", 0, 0) if margin > 0 else ("cat", 4, 7)), 0.5, best, margin))
    return task, records, answers


@pytest.mark.parametrize("shift", [6.0, -6.0])
def test_a_threshold_is_fitted_where_it_helps(shift):
    task, records, answers = asked(np.random.default_rng(0), 1000, shift)
    settings, told = calibrate(task, records, answers)
    assert settings.threshold == told["threshold"]["value"] == pytest.approx(shift, abs=1.0)
    assert told["threshold"]["after_f1"] > 0.95 > 0.6 > told["threshold"]["before_f1"]
    assert replace(settings, threshold=0.0) == task.settings
    json.dumps(told)


def test_a_threshold_that_hurts_is_not_kept():
    task, records, answers = asked(np.random.default_rng(1), 1000, 0, by_half=(6.0, 0.0))
    settings, told = calibrate(task, records, answers)
    assert told["threshold"]["fitted"] > 4
    assert told["threshold"]["after_f1"] < told["threshold"]["before_f1"]
    assert settings.threshold == told["threshold"]["value"] == 0.0


def test_a_model_that_always_answers_gets_no_threshold():
    task, records, answers = asked(np.random.default_rng(1), 400, 6.0)
    always = TASKS["qa"](replace(task.settings, threshold=None))
    assert calibrate(always, records, answers) == (always.settings, {})
    assert calibrate(task, records[: FEW - 10], answers[: FEW - 10]) == (task.settings, {})


def test_a_threshold_that_was_given_stays_where_none_is_better():
    task, records, answers = asked(np.random.default_rng(1), 1000, 0, by_half=(6.0, 0.5))
    given = TASKS["qa"](replace(task.settings, threshold=0.5))
    assert calibrate(given, records, answers)[0].threshold == 0.5


def test_contexts_without_any_span_do_not_stop_the_fitting():
    task, records, answers = asked(np.random.default_rng(1), 400, 3.0)
    empty = Answered("", 0, 0, 1.0, [], 1e4)
    answers = [empty if number % 50 < 2 else answer for number, answer in enumerate(answers)]
    settings, _ = calibrate(task, records, answers)
    assert np.isfinite(settings.threshold)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("classification", "qa")])
def test_nothing_is_fitted_for_other_tasks(name):
    task, records = learned(name), RECORDS[name] * 20
    answers = answered(task, records, np.random.default_rng(0))
    assert calibrate(task, records, answers) == (task.settings, {})


def answered(task, records, draw, tokenizer=None):
    """Answers from random logits, or where there is no tokenizer, made up."""
    name = task.settings.task
    if tokenizer is not None:
        units = task.units(records, tokenizer)
        width = 8 if name == "similarity" else task.outputs
        logits = [[draw.normal(size=(len(one.places), width)).astype(np.float32) for one in unit] for unit in units]
        return task.answers(records, units, logits)
    if name == "multilabel":
        return [Labelled((), dict.fromkeys(task.settings.labels, 0.4)) for _ in records]
    if name == "tagging":
        return [Tagged(record.labels, (0.9,) * len(record.labels)) for record in records]
    return [Chosen(0, [0.5, 0.3, 0.2]) if name == "choice" else float(draw.random()) for _ in records]


@pytest.mark.parametrize("name", TASKS)
def test_a_summary_is_plain_json_and_agrees_with_the_score(name, pieces):
    task, records = learned(name), RECORDS[name]
    answers = answered(task, records, np.random.default_rng(7), pieces)
    told = summarize(task, records, answers)
    assert json.loads(json.dumps(told, allow_nan=False)) == json.loads(json.dumps(told))
    assert told["metrics"] == task.score(records, answers)
    assert told["headline"] == task.headline
    low, high = told["intervals"][task.headline]
    assert -1 <= low <= high <= 1
    assert low - 1e-9 <= told["metrics"][task.headline] <= high + 1e-9 or name in ("regression", "similarity")
    assert (told["confusion"] is None) == (name != "classification")
    assert (told["kinds"] is None) == (name != "tagging")
    assert (told["breakdown"] is None) == (name != "qa")
    assert len(told["mistakes"]) <= 20
    for mistake in told["mistakes"]:
        assert mistake["text"] and isinstance(mistake["gold"], str) and isinstance(mistake["answer"], str)


@pytest.mark.parametrize("name", TASKS)
def test_mistakes_come_worst_first(name, pieces):
    task, records = learned(name), RECORDS[name]
    answers = answered(task, records, np.random.default_rng(8), pieces)
    mistakes = summarize(task, records, answers)["mistakes"]
    if name in ("regression", "similarity"):
        off = sorted((abs(task.value(a) - g) for a, g in zip(answers, task.gold(records), strict=True)), reverse=True)
        assert [abs(float(m["gold"]) - float(m["answer"])) for m in mistakes] == pytest.approx(off, abs=0.006)
    else:
        sure = [mistake["probability"] for mistake in mistakes]
        assert sure == sorted(sure, reverse=True) and len(sure) > 1


def test_a_classification_in_full():
    task, records, answers = classified(np.random.default_rng(5), 300, 1.0)
    told = summarize(task, records, answers)
    assert told["labels"] == ["a", "b", "c"]
    table = np.array(told["confusion"])
    assert table.sum() == 300
    assert np.trace(table) / 300 == pytest.approx(told["metrics"]["accuracy"])
    wrong = {(m["gold"], m["answer"]) for m in told["mistakes"]}
    assert all(gold != answer and gold in "abc" for gold, answer in wrong)
    most = max(a.probability for a, r in zip(answers, records, strict=True) if a.label != r.label)
    assert told["mistakes"][0]["probability"] == most


def test_right_answers_are_no_mistakes():
    task = learned("tagging")
    records = RECORDS["tagging"]
    answers = [Tagged(record.labels, (0.9,) * len(record.labels)) for record in records]
    told = summarize(task, records, answers)
    assert told["mistakes"] == [] and told["metrics"]["entity_f1"] == 1.0
    assert told["kinds"]["ANIMAL"]["count"] == 16
    assert told["intervals"]["entity_f1"] == (1.0, 1.0)
    task = learned("choice")
    assert summarize(task, RECORDS["choice"], [Chosen(0, [0.8, 0.1, 0.1])] * 16)["mistakes"] == []


def test_of_similarities_only_those_that_are_off_are_mistakes():
    def mistakes(answers, given, **changes):
        task = TASKS["similarity"](TaskSettings(task="similarity", **changes))
        records = [Record("a", "b", label=label) for label in given]
        told = summarize(task, records, [Compared(value, value) for value in answers])
        return [(mistake["gold"], mistake["answer"]) for mistake in told["mistakes"]]

    assert mistakes([0.9, 0.1], [5.0, 5.0], objective="cosine", scale=5.0) == [("1", "0.10"), ("1", "0.90")]
    assert mistakes([0.5, -0.5], [None, None], objective="negatives") == [("1", "0.00")]
    assert mistakes([0.5, -0.5], ["yes", "no"], objective="classes", labels=("no", "yes")) == []


def spoken(text):
    return Answered(text, 0, 1, 0.9, [Span(text, 0, 1, 0.9)], -1.0)


def test_answers_by_length():
    task = learned("qa")
    records = [
        Question("q", "c", (("one two three four five six", 0),)),
        Question("q", "c", (("one", 0),)),
        Question("q", "c", (("one", 0), ("two", 0))),
        Question("q", "c", impossible=True),
    ]
    told = summarize(task, records, [spoken("one two three"), spoken("one"), spoken("two"), spoken("")])
    rows = {row["group"]: (row["count"], row["exact"], row["f1"]) for row in told["breakdown"]}
    assert rows == {
        "no answer": (1, 1.0, 1.0),
        "1–2 words": (2, 1.0, 1.0),
        "6 words and more": (1, 0.0, pytest.approx(2 / 3)),
    }
    assert [(m["gold"], m["answer"]) for m in told["mistakes"]] == [("one two three four five six", "one two three")]


def test_silence_and_speech_in_the_wrong_place_are_mistakes():
    task = learned("qa")
    records = [Question("q", "c", impossible=True), Question("q", "c", (("one", 0),))]
    told = summarize(task, records, [spoken("one"), spoken("")])
    assert sorted((m["gold"], m["answer"]) for m in told["mistakes"]) == [("no answer", "one"), ("one", "no answer")]


def test_an_answer_that_counts_as_exact_is_no_mistake():
    task = learned("qa")
    records = [Question("q", "the cat", (("The cat", 0),))]
    told = summarize(task, records, [spoken("cat.")])
    assert told["metrics"]["exact"] == 1.0
    assert told["mistakes"] == []


def test_sets_of_labels_are_spelled_by_name():
    task = learned("multilabel")
    answers = [Labelled(("early",), {"early": 0.9, "odd": 0.1})]
    (mistake,) = summarize(task, [Record("x", label=("early", "odd"))], answers)["mistakes"]
    assert mistake["answer"] == "early" and "odd" in mistake["gold"]


def test_words_without_entities():
    task = learned("tagging")
    records = [Words(("a", "b"), ("O", "O"))]
    told = summarize(task, records, [Tagged(("O", "O"), (0.5, 0.5))])
    assert told["kinds"] == {} and told["metrics"]["accuracy"] == 1.0
    json.dumps(told, allow_nan=False)


def test_of_several_labels_all_must_be_sure():
    """An answer without a label is as sure as the likeliest of them is unlikely."""
    task = TASKS["multilabel"](TaskSettings(task="multilabel", labels=("a", "b")))
    logits = [[np.log([[chance / (1 - chance) for chance in pair]])] for pair in ((0.4, 0.1), (0.9, 0.7))]
    records = [Record("x", label=("a",)), Record("y", label=("b",))]
    told = summarize(task, records, task.answers(records, [], logits))["mistakes"]
    assert [(one["answer"], round(one["probability"], 6)) for one in told] == [("a, b", 0.7), ("nothing", 0.6)]
