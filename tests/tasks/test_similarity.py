"""Texts as vectors: the objective is what the labels ask for, every loss is its formula, and pooling is a plain loop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.inputs import pack_units
from bertkit.data.packing import Shapes
from bertkit.data.records import Record
from bertkit.data.windows import Input, Layout
from bertkit.errors import DataError, InputError
from bertkit.model.config import Config
from bertkit.model.device import find_device
from bertkit.tasks.answering import answer_records
from bertkit.tasks.network import build_network, pool
from bertkit.tasks.similarity import OBJECTIVES, Compared, Similarity
from bertkit.tasks.task import TaskSettings

CONFIG = Config(vocabulary=50, layers=1, width=16, heads=2, feedforward=32, positions=32, dropout=0.0, attention_dropout=0.0)
TEXTS = Layout(by_unit=True)
seeds = st.integers(0, 2**32)


def records_of(labels, negative=None):
    return [Record(f"text {i}", f"pair {i}", label=label, negative=negative) for i, label in enumerate(labels)]


def similar(objective, labels=(), **changes):
    return Similarity(TaskSettings(task="similarity", objective=objective, labels=labels, max_length=16, **changes))


@pytest.mark.parametrize(
    ("labels", "negative", "objective", "classes"),
    [
        ([0.5, 1.0, -1.0], None, "cosine", ()),
        (["yes", "no", "yes"], None, "classes", ("no", "yes")),
        ([None, None], None, "negatives", ()),
        ([None, None], "other", "negatives", ()),
    ],
)
def test_the_objective_is_what_the_labels_ask_for(labels, negative, objective, classes):
    learned = Similarity.learn(TaskSettings(labels=classes), records_of(labels, negative))
    assert (learned.objective, learned.labels) == (objective, classes)


def test_an_objective_may_be_named():
    pairs, triplets = records_of([None, None]), records_of([None, None], "other")
    assert Similarity.learn(TaskSettings(objective="triplet"), triplets).objective == "triplet"
    with pytest.raises(InputError, match="triplets need a negative for every text"):
        Similarity.learn(TaskSettings(objective="triplet"), [*triplets, *pairs])
    with pytest.raises(InputError, match=r"objective is 'cosinus' .did you mean .cosine...; expected one of cosine"):
        Similarity.learn(TaskSettings(objective="cosinus"), pairs)
    assert Similarity.learn(TaskSettings(labels=("b", "a")), records_of(["a", "b"])).labels == ("b", "a")


def test_classes_are_put_in_order_by_the_user():
    """By their alphabet, entailment would be least alike, and the worst epoch would be kept."""
    with pytest.raises(
        InputError, match=r"the labels are classes such as 'no'; name them from least to most alike, as in --set"
    ):
        Similarity.learn(TaskSettings(), records_of(["yes", "no", "so"]))


def test_unlabelled_records_are_no_class():
    with pytest.raises(InputError, match="some pairs have a label and some have none"):
        Similarity.learn(TaskSettings(), records_of(["yes", None, "no"]))


def test_scores_from_nought_to_five_are_scaled(tokenizer):
    task = Similarity(Similarity.learn(TaskSettings(), records_of([0.0, 5.0, 2.5])))
    assert task.settings.scale == 5
    assert task.units([Record("a", "b", 2.5)], tokenizer)[0][0].targets.tolist() == [0.5]
    assert task.gold([Record("a", "b", 2.5)]) == [0.5]  # what a cosine is compared with


def test_a_missing_partner_is_refused_with_its_place(tokenizer):
    records = [Record("the dog", "the cat", label=1.0), Record("the dog", label=0.5, place="pairs.csv:7")]
    with pytest.raises(DataError, match=r"pairs\.csv:7.*without its partner"):
        similar("cosine").units(records, tokenizer)
    with pytest.raises(InputError, match="text 2 is empty"):
        similar("cosine").units([records[0], Record(" ", "x", label=0.0)], tokenizer)


def test_texts_become_inputs_in_their_order(tokenizer):
    records = [Record("the dog", "the cat", None, "the goat"), Record("a dog", "a cat", None, "a goat")]
    for objective, many in (("negatives", 3), ("triplet", 3), ("cosine", 2)):
        units = similar(objective).units(records, tokenizer)
        assert [[tokenizer.decode(one.ids) for one in unit] for unit in units] == [
            [record.text, record.pair, record.negative][:many] for record in records
        ]
    mixed = similar("negatives").units([records[0], Record("a dog", "a cat")], tokenizer)
    assert [len(unit) for unit in mixed] == [2, 2]  # third texts only where all have one


def test_targets_by_objective(tokenizer):
    def target(objective, label, labels=()):
        return float(similar(objective, labels).units([Record("a", "b", label)], tokenizer)[0][0].targets[0])

    assert target("cosine", 0.25) == 0.25
    assert np.isnan(target("cosine", None))
    assert target("classes", "yes", ("no", "yes")) == 1
    assert np.isnan(target("classes", None, ("no", "yes")))
    assert target("negatives", None) == 1 and target("triplet", None) == 1
    with pytest.raises(DataError, match="'maybe' was not seen in training"):
        target("classes", "maybe", ("no", "yes"))


def made_up(draw, sizes, per_unit, targets):
    ids = [draw.integers(1, 50, size=n) for n in sizes]
    units = [ids[i : i + per_unit] for i in range(0, len(ids), per_unit)]
    return [
        [Input(one, np.zeros(len(one), int), np.zeros(1, int), np.array([target], np.float32)) for one in unit]
        for unit, target in zip(units, targets, strict=True)
    ]


@pytest.mark.parametrize("shapes", [None, Shapes(budget=256, lengths=(16,), crowding=2.0)], ids=["free", "fixed"])
@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), seeds)
def test_pooling_is_a_plain_loop(shapes, sizes, seed):
    draw = np.random.default_rng(seed)
    data = pack_units(made_up(draw, sizes, 1, [0.0] * len(sizes)), TEXTS, shapes)
    x = torch.from_numpy(draw.normal(size=(len(data.batch.ids), 5)).astype(np.float32))
    begins = np.cumsum(sizes) - sizes
    parts = [x[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    for pooling, plain in (("mean", lambda p: p.mean(0)), ("max", lambda p: p.amax(0)), ("cls", lambda p: p[0])):
        found = pool(x, data, pooling)[: len(sizes)]
        torch.testing.assert_close(found, torch.stack([plain(part) for part in parts]), atol=1e-6, rtol=1e-5)


def plain_losses(objective, vectors, targets, network):
    """The formulas of Sentence-BERT and of in-batch negatives, pair by pair: the summed loss, how many are right, and how
    many are so close that another rounding may tell otherwise."""
    loss, right, close = 0.0, 0, 0

    def cosine(a, b):
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    for number, (unit, target) in enumerate(zip(vectors, targets, strict=True)):
        u, v = unit[:2]
        if objective == "cosine":
            loss += 0 if np.isnan(target) else (cosine(u, v) - target) ** 2
            margin = 0.1 - abs(cosine(u, v) - target)
        elif objective == "triplet":
            near, far = np.linalg.norm(u - v), np.linalg.norm(u - unit[2])
            loss += max(0.0, near - far + 1)
            margin = far - near
        elif objective == "classes":
            if not np.isnan(target):
                joined = np.concatenate([u, v, np.abs(u - v)])
                scores = network.output.weight.detach().numpy() @ joined + network.output.bias.detach().numpy()
                loss += float(np.log(np.exp(scores).sum()) - scores[int(target)])
            margin = lead(scores, int(target)) if not np.isnan(target) else -1
        else:
            others = [other[1] for other in vectors] + [other[2] for other in vectors if len(other) > 2]
            scores = 20 * np.array([cosine(u, other) for other in others])
            loss += float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[number])
            margin = lead(scores, number)
        right, close = right + (margin > 0), close + (abs(margin) < 1e-4)
    return loss, right, close


def lead(scores, number):
    """How far one score is ahead of all others."""
    return scores[number] - max([*np.delete(scores, number), -np.inf])


SIZES = [("cosine", 2), ("classes", 2), ("triplet", 3), ("negatives", 2), ("negatives", 3)]


@pytest.mark.parametrize(("objective", "per_unit"), SIZES)
@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(1, 6), st.sampled_from(["mean", "max", "cls"]))
def test_each_objective_is_its_formula(objective, per_unit, seed, many, pooling):
    draw = np.random.default_rng(seed)
    known = {"cosine": draw.uniform(-1, 1, many), "classes": draw.integers(3, size=many)}.get(objective, np.zeros(many))
    if objective in ("cosine", "classes"):
        known = np.where(draw.random(many) < 0.2, np.nan, known)
    data = pack_units(made_up(draw, draw.integers(2, 12, size=many * per_unit), per_unit, known), TEXTS)
    torch.manual_seed(seed % 1000)
    network = build_network(CONFIG, similar(objective, ("a", "b", "c"), pooling=pooling)).eval()
    torch.nn.init.normal_(network.output.weight)
    vectors = network.logits(data)
    assert vectors.shape == (many * per_unit, 16)
    plain = vectors.detach().numpy().astype(np.float64).reshape(many, per_unit, 16)
    loss, right, close = plain_losses(objective, plain, np.float32(known), network)
    found = network(data)
    assert found[0].item() == pytest.approx(loss, rel=1e-4, abs=1e-4)
    assert abs(found[1].item() - right) <= close
    assert data.known == (~np.isnan(known)).sum()


def test_every_objective_has_a_gradient_even_where_texts_are_the_same():
    """Vectors without any distance between them must not give a gradient that is no number."""
    for objective in OBJECTIVES:
        network = build_network(CONFIG, similar(objective, ("a", "b")))
        same = [Input(np.arange(1, 6), np.zeros(5, int), np.zeros(1, int), np.zeros(1, np.float32))] * 3
        data = pack_units([same if objective == "triplet" else same[:2]] * 2, TEXTS)
        network(data)[0].backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_answers_are_cosines_whatever_the_length_of_the_vectors(tokenizer):
    task, records = similar("cosine"), [Record("a", "b")] * 4
    vectors = [[3, 0], [2, 0]], [[1, 0], [0, 5]], [[1, 1], [-2, -2]], [[0, 0], [1, 0]]
    logits = [[np.array([v], np.float32) for v in pair] for pair in vectors]
    found = task.answers(records, [[]] * 4, logits)
    assert [task.value(answer) for answer in found] == pytest.approx([1, 0, -1, 0])


def test_a_text_is_like_itself_and_company_does_not_matter(tokenizer):
    config = CONFIG.with_(vocabulary=len(tokenizer))
    task = similar("cosine")
    network = build_network(config, task).eval()
    records = [Record("the dog barks", "the dog barks"), Record("snow falls", "the river is frozen")]
    both = list(answer_records([network], task, tokenizer, records, find_device("cpu")))
    assert both[0].similarity == pytest.approx(1, abs=1e-6)
    (alone,) = answer_records([network], task, tokenizer, records[1:], find_device("cpu"))
    assert alone.similarity == pytest.approx(both[1].similarity, abs=1e-5)


def test_gold_by_objective():
    assert similar("cosine").gold(records_of([0.5, -1.0])) == [0.5, -1.0]
    assert similar("classes", ("no", "yes")).gold(records_of(["yes", "no"])) == [1, 0]
    assert similar("negatives").gold(records_of([None, 0.0])) == [1.0, 1.0]


def test_scores_rank_models_where_similarities_are_known():
    task, records = similar("cosine"), records_of([0.0, 0.5, 1.0, 0.25])
    assert task.score(records, compared([0.0, 0.5, 1.0, 0.25]))["spearman"] == pytest.approx(1)
    assert task.score(records, compared([1.0, 0.5, 0.0, 0.75]))["spearman"] == pytest.approx(-1)


def compared(similarities):
    return [Compared(value, value) for value in similarities]


@pytest.mark.parametrize("objective", ["negatives", "triplet"])
def test_scores_rank_models_where_only_pairs_are_known(objective):
    """Else the first evaluation of a run is its best, and every later one is thrown away."""
    task, records = similar(objective), records_of([None] * 4, "other")
    assert (
        task.score(records, compared([0.9, 0.8, 0.95, 0.9]))[task.headline]
        > task.score(records, compared([-0.9, 0.1, 0.0, -0.5]))[task.headline]
    )


def test_numbers_and_words_do_not_mix(tokenizer):
    with pytest.raises(DataError, match="label 'n/a'; expected a number, as others have"):
        Similarity.learn(TaskSettings(task="similarity"), records_of([0.5, "n/a"]))
    with pytest.raises(DataError, match="label 'n/a'; expected a number, as in training"):
        similar("cosine").units(records_of(["n/a"]), tokenizer)
    with pytest.raises(DataError, match="was not seen in training"):
        similar("classes", ("no", "yes")).gold(records_of([None]))
