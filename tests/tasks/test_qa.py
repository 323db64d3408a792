"""Answers are exact parts of the context: targets lead to them, logits lead back, over any windows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nasty import ALPHABETS, nasty

from bertkit.data.records import Question
from bertkit.data.windows import NOTHING
from bertkit.errors import InputError
from bertkit.tasks.qa import BEST, QuestionAnswering, _best_spans
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer, behind_marks

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), "the", "cat", "sat", "where", "?", ".", ",", "é", "中"]
TOKENIZERS = {cased: Tokenizer.from_vocabulary(VOCABULARY, cased=cased) for cased in (False, True)}
TOKENIZER = TOKENIZERS[False]
characters = st.sampled_from("".join(ALPHABETS.values()))
words = st.sampled_from("the cat sat Éte\u0301 naïve 中文 . , x\u0323\u0301 3.14 don't 한국".split())
contexts = st.one_of(
    st.lists(words, min_size=1, max_size=25).map(" ".join),
    st.text(characters, min_size=1, max_size=80),
    st.sampled_from(nasty(300, seed=5)),
).filter(lambda text: text.strip())


def asked(**changes):
    return QuestionAnswering(TaskSettings(**(dict(task="qa", max_length=24, stride=4) | changes)))


def pieces_of(tokenizer, text):
    (pieces,) = tokenizer.pieces([text])
    return pieces


def said(record, one, target):
    """The part of the context between two places of an input."""
    return record.context[one.origin[target[0], 0] : one.origin[target[1], 1]]


@settings(deadline=None, max_examples=300)
@given(contexts, st.data(), st.booleans())
def test_targets_lead_back_to_the_answer(context, data, cased):
    tokenizer = TOKENIZERS[cased]
    pieces = pieces_of(tokenizer, context)
    if not len(pieces):
        return
    first = data.draw(st.integers(0, len(pieces) - 1))
    last = data.draw(st.integers(first, min(len(pieces) - 1, first + 6)))
    begin, end = int(pieces.offsets[first, 0]), int(pieces.offsets[last, 1])
    record = Question("where ?", context, ((context[begin:end], begin),))
    task = asked(max_length=data.draw(st.integers(8, 40)), stride=data.draw(st.integers(1, 12)))
    (unit,) = task.units([record], tokenizer)
    held = [one for one in unit if one.targets.tolist() != [0, 0]]
    for one in held:
        assert one.targets[0] <= one.targets[1]
        assert said(record, one, one.targets) == context[begin:end]
        assert one.segments[one.targets].tolist() == [1, 1]
    room = task.settings.max_length - 3 - 2
    overlap = room - min(task.settings.stride, room)
    if last - first < max(1, overlap):
        assert held  # an answer no longer than the overlap is whole somewhere


@settings(deadline=None, max_examples=200)
@given(contexts, st.data())
def test_an_answer_that_cuts_through_words_is_covered_and_nothing_beside_it(context, data):
    begin = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(begin + 1, len(context)))
    record = Question("where ?", context, ((context[begin:end], begin),))
    (unit,) = asked(max_length=512, stride=128).units([record], TOKENIZER)
    (one,) = unit
    offsets = pieces_of(TOKENIZER, context).offsets
    touched = [i for i, (a, b) in enumerate(offsets.tolist()) if a < end and b > begin]
    if not touched:
        assert one.targets.tolist() == [NOTHING, NOTHING]  # the tokenizer saw nothing of it, so nothing is learned
    else:
        shift = len(pieces_of(TOKENIZER, "where ?")) + 2
        assert one.targets.tolist() == [touched[0] + shift, touched[-1] + shift]


def test_of_repeated_strings_the_one_that_was_meant_is_the_target():
    context = "the cat sat . the cat sat . the cat sat ."
    for begin in (4, 18, 32):
        (unit,) = asked(max_length=64).units([Question("where ?", context, (("cat", begin),))], TOKENIZER)
        assert unit[0].origin[unit[0].targets[0]].tolist() == [begin, begin + 3]


def test_what_is_not_answered_has_no_target_and_the_impossible_points_to_cls():
    records = [Question("where ?", "the cat"), Question("where ?", "the cat", impossible=True)]
    unknown, impossible = asked().units(records, TOKENIZER)
    assert [one.targets.tolist() for one in unknown] == [[NOTHING, NOTHING]]
    assert [one.targets.tolist() for one in impossible] == [[0, 0]]


def test_windows_without_the_answer_point_to_cls():
    context = " ".join("abcdefghijklmnopqrstuvwxyz")
    record = Question("where ?", context, (("x", context.index("x")),))
    (unit,) = asked(max_length=13, stride=8).units([record], TOKENIZER)
    held = [one.targets.tolist() for one in unit if one.targets.tolist() != [0, 0]]
    assert len(unit) > 3 and len(held) == 1
    assert all(len(one) <= 13 for one in unit)


def test_every_piece_of_the_context_is_in_a_window_and_the_question_in_all():
    context = " ".join("abcdefghijklmnopqrstuvwxyz")
    (unit,) = asked(max_length=16, stride=5).units([Question("where is the cat ?", context)], TOKENIZER)
    begins = {int(a) for one in unit for a, b in one.origin[one.segments == 1] if b > a}
    assert begins == set(range(0, len(context), 2))
    question = pieces_of(TOKENIZER, "where is the cat ?").ids.tolist()
    assert all(one.ids[1 : len(question) + 1].tolist() == question for one in unit)


def test_long_questions_are_cut():
    (unit,) = asked(question_length=5).units([Question("where ? " * 30, "the cat sat")], TOKENIZER)
    assert [int((one.segments == 0).sum()) for one in unit] == [7] * len(unit)


def test_a_long_question_leaves_half_of_the_room():
    (unit,) = asked(max_length=24, question_length=64).units([Question("where ? " * 30, "the cat sat")], TOKENIZER)
    assert all((one.segments == 0).sum() <= 12 for one in unit)


@pytest.mark.parametrize("empty", ["", " ", "\n\t", "\xa0\u3000"])
def test_empty_questions_and_contexts_are_refused(empty):
    with pytest.raises(InputError, match="text 2 is empty"):
        asked().units([Question("a", "b"), Question("where ?", empty)], TOKENIZER)
    with pytest.raises(InputError, match="f:8 is empty"):
        asked().units([Question(empty, "the cat", place="f:8")], TOKENIZER)


def brute_force(context, unit, logits, longest):
    """The best score of every span of characters, by looking at all of them."""
    scores = {}
    for one, values in zip(unit, logits, strict=True):
        inside = [i for i in range(len(one)) if one.segments[i] == 1 and one.origin[i, 1] > one.origin[i, 0]]
        for start in inside:
            for end in inside:
                if start <= end < start + longest:
                    span = int(one.origin[start, 0]), behind_marks(context, int(one.origin[end, 1]))
                    scores[span] = max(scores.get(span, -np.inf), float(values[start, 0] + values[end, 1]))
    return scores


@settings(deadline=None, max_examples=150)
@given(contexts, st.integers(8, 30), st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**32))
def test_the_best_spans_are_those_of_a_look_at_all(context, length, stride, longest, seed):
    task, draw = asked(max_length=length, stride=stride, answer_length=longest), np.random.default_rng(seed)
    record = Question("where ?", context)
    units = task.units([record], TOKENIZER)
    logits = [[draw.normal(size=(len(one), 2)) for one in units[0]]]
    (answer,) = task.answers([record], units, logits)
    wanted = brute_force(context, units[0], logits[0], longest)
    null = min(float(values[0].sum()) for values in logits[0])
    if not wanted:
        assert answer.text == "" and answer.best == [] and answer.null_margin > 1000
        return
    ranked = sorted(wanted.values(), reverse=True)
    assert wanted[answer.begin, answer.end] == pytest.approx(ranked[0])
    assert answer.text == context[answer.begin : answer.end]
    assert answer.null_margin == pytest.approx(null - ranked[0])
    assert len(answer.best) <= BEST and answer.best[0].text == answer.text
    for span in answer.best:
        assert span.text == context[span.begin : span.end] and span.text
    offered = [wanted[span.begin, span.end] for span in answer.best]
    ends = {behind_marks(context, end) for _, end in pieces_of(TOKENIZER, context).offsets.tolist()}
    if len(ends) == len(pieces_of(TOKENIZER, context)):  # else several pieces share their characters, and spans are fewer
        np.testing.assert_allclose(offered, ranked[:BEST])
    chances = np.exp(np.array([*offered, null]) - max(*offered, null))
    np.testing.assert_allclose([span.probability for span in answer.best], (chances / chances.sum())[:-1], atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 2**32))
def test_one_window_equals_a_look_at_all_its_spans(many, longest, seed):
    (unit,) = asked(max_length=512).units([Question("where ?", " ".join(["cat"] * many))], TOKENIZER)
    values = np.random.default_rng(seed).normal(size=(len(unit[0]), 2))
    found = _best_spans(unit[0], values, longest)
    wanted = sorted(brute_force(" ".join(["cat"] * many), unit, [values], longest).items(), key=lambda item: -item[1])[:BEST]
    assert sorted(found, key=lambda span: -span[2]) == [(*span, pytest.approx(score)) for span, score in wanted]


def pointing(unit, begin, end, height=10.0):
    """Logits that point at the given characters wherever a window holds them, and at [CLS] elsewhere."""
    logits = []
    for one in unit:
        values = np.zeros((len(one), 2))
        starts = np.flatnonzero((one.segments == 1) & (one.origin[:, 0] == begin) & (one.origin[:, 1] > begin))
        ends = np.flatnonzero((one.segments == 1) & (one.origin[:, 1] == end))
        if len(starts) and len(ends):
            values[starts[0], 0] = values[ends[-1], 1] = height
        else:
            values[0] = height
        logits.append(values)
    return logits


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 59), st.integers(0, 5), st.integers(1, 8))
def test_the_answer_is_found_in_whichever_window_holds_it(place, more, stride):
    words = [f"{a}{b}" for a in "abcdef" for b in "0123456789"]
    context = "  ".join(words)
    last = min(place + more, 59)
    begin, end = 4 * place, 4 * last + 2
    task = asked(max_length=40, stride=stride, threshold=0.0)
    record = Question("where ?", context)
    units = task.units([record], TOKENIZER)
    (answer,) = task.answers([record], units, [pointing(units[0], begin, end)])
    assert (answer.begin, answer.end) == (begin, end)
    assert answer.text == "  ".join(words[place : last + 1])  # as it stands in the context, spaces and all
    assert answer.null_margin <= -20 or len(units[0]) == 1
    assert answer.probability > 0.5


def test_an_answer_is_as_it_stands_in_the_context():
    context = "Das ÉTÉ  war naïve; Zürich\u00a0HB?"
    for text in ("ÉTÉ  war", "naïve", "Zürich\u00a0HB"):
        begin = context.index(text)
        record = Question("where ?", context, ((text, begin),))
        task = asked(max_length=64)
        units = task.units([record], TOKENIZER)
        (answer,) = task.answers([record], units, [pointing(units[0], begin, begin + len(text))])
        assert answer.text == text and context[answer.begin : answer.end] == text
        assert said(record, units[0][0], units[0][0].targets) == text


def test_an_answer_ends_behind_the_marks_of_its_last_letter():
    context = "the cafe\u0301 sat"
    units = asked(max_length=64).units([Question("where ?", context)], TOKENIZER)
    (answer,) = asked(max_length=64).answers([Question("where ?", context)], units, [pointing(units[0], 4, 8)])
    assert answer.text == "cafe\u0301"
    assert len({(span.begin, span.end) for span in answer.best}) == len(answer.best)


def test_the_longest_answer_is_kept_to():
    record = Question("where ?", "the cat sat . the cat sat .")
    for longest in range(1, 9):
        task = asked(max_length=64, answer_length=longest)
        units = task.units([record], TOKENIZER)
        (answer,) = task.answers([record], units, [pointing(units[0], 0, len(record.context))])
        assert all(len(span.text.split()) <= longest for span in answer.best)
        assert (answer.text == record.context) == (longest == 8)


def null_case(margin, threshold):
    """An answer whose null score exceeds the best span's by `margin`."""
    task, record = asked(max_length=64, threshold=threshold), Question("where ?", "the cat sat")
    units = task.units([record], TOKENIZER)
    values = np.full((len(units[0][0]), 2), -50.0)
    place = len(units[0][0]) - 3
    values[place] = 1.0
    values[0] = 1.0 + margin / 2
    return task.answers([record], units, [[values]])[0]


@pytest.mark.parametrize("margin", [-8.0, -0.5, 0.0, 0.5, 8.0])
@pytest.mark.parametrize("threshold", [None, -1.0, 0.0, 1.0, 20.0])
def test_no_answer_only_where_the_margin_exceeds_the_threshold(margin, threshold):
    answer = null_case(margin, threshold)
    assert answer.null_margin == pytest.approx(margin)
    assert answer.best[0].text == "cat"
    silent = threshold is not None and margin > threshold
    assert answer.text == ("" if silent else "cat")
    null = np.exp(margin) / (1 + np.exp(margin))
    assert answer.probability == pytest.approx(null if silent else 1 - null, abs=1e-6)
    assert (answer.begin, answer.end) == ((0, 0) if silent else (4, 7))


def test_the_null_score_is_the_least_of_the_windows():
    """A window without the answer says so loudly; that must not silence the one that holds it."""
    context = " ".join("abcdefghijklmnopqrstuvwxyz")
    record, task = Question("where ?", context), asked(max_length=13, stride=4, threshold=0.0)
    units = task.units([record], TOKENIZER)
    logits = pointing(units[0], 4, 5)
    (answer,) = task.answers([record], units, [logits])
    assert sum(values[0, 0] > 0 for values in logits) > 2
    assert answer.text == "c"


@pytest.mark.parametrize("context", ["\u200b", "\x00", "\u0301", "\ufeff\u200d"])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_context_of_which_no_piece_is_left_has_no_answer(context, threshold):
    task, record = asked(threshold=threshold), Question("where ?", context)
    units = task.units([record], TOKENIZER)
    (answer,) = task.answers([record], units, [[np.zeros((len(one), 2)) for one in units[0]]])
    assert answer[:3] == ("", 0, 0) and answer.best == [] and answer.probability == 1.0
    assert answer.null_margin > 1000


def test_a_margin_can_be_written_as_json():
    task, record = asked(threshold=0.0), Question("where ?", "\u200b")
    units = task.units([record], TOKENIZER)
    (answer,) = task.answers([record], units, [[np.zeros((len(one), 2)) for one in units[0]]])
    json.dumps(answer.null_margin, allow_nan=False)


def test_temperature_changes_how_sure_but_not_what():
    task, record = asked(max_length=64), Question("where ?", "the cat sat")
    units = task.units([record], TOKENIZER)
    logits = [[np.random.default_rng(0).normal(size=(len(units[0][0]), 2))]]
    sharp, soft = (
        QuestionAnswering(replace(task.settings, temperature=t)).answers([record], units, logits)[0] for t in (0.5, 4.0)
    )
    assert sharp.text == soft.text and sharp.null_margin == soft.null_margin
    assert sharp.probability > soft.probability


def test_silence_is_learned_where_some_questions_have_no_answer():
    plain, silent = Question("a", "b", (("b", 0),)), Question("a", "b", impossible=True)
    learn = QuestionAnswering.learn
    assert learn(TaskSettings(), [plain]).threshold is None
    assert learn(TaskSettings(), [plain, silent]).threshold == 0.0
    assert learn(TaskSettings(threshold=2.0), [plain, silent]).threshold == 2.0
    assert learn(TaskSettings(threshold=2.0), [plain]).threshold == 2.0
    assert learn(TaskSettings(stride=7), [plain]).stride == 7


def test_with_the_usual_stride_short_answers_are_whole_in_some_window():
    words = [f"{a}{b}" for a in LETTERS for b in "0123456789"][:150]
    context = " ".join(words)
    answer = lambda i: (" ".join(words[i : i + 3]), 3 * i)  # noqa: E731
    records = [Question("where ?", context, (answer(i),)) for i in range(140)]
    task = QuestionAnswering(QuestionAnswering.learn(TaskSettings(task="qa", max_length=64), records))
    assert all(any(one.targets.any() for one in unit) for unit in task.units(records, TOKENIZER))


def test_gold_and_score():
    records = [Question("a", "the cat sat", (("cat", 4), ("the cat", 0))), Question("a", "b", impossible=True)]
    task = asked(max_length=64, threshold=0.0)
    assert task.gold(records) == [("cat", "the cat"), ()]
    units = task.units(records, TOKENIZER)
    logits = [pointing(units[0], 4, 7), pointing(units[1], 99, 99)]
    answers = task.answers(records, units, logits)
    assert [task.value(answer) for answer in answers] == ["cat", ""]
    scores = task.score(records, answers)
    assert scores["f1"] == scores["exact"] == scores["no_answer_accuracy"] == 1.0
