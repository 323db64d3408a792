"""Inputs in packed batches: every place, group and target points at its token, with fixed shapes or without, and an epoch
sees every unit once."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.examples import EPOCH
from bertkit.data.inputs import InputFeed, pack_units
from bertkit.data.packing import Shapes
from bertkit.data.windows import NOTHING, Input, Layout
from bertkit.data.windows import known as is_known
from bertkit.model.batch import stepped
from bertkit.model.config import Config
from bertkit.tasks.network import TaskNetwork
from bertkit.tasks.task import Task, TaskSettings

LAYOUTS = {
    "first": Layout(),  # classification
    "words": Layout(capacity=1.0),  # tagging
    "spans": Layout(picks=True, capacity=1.0),  # qa
    "options": Layout(by_unit=True, picks=True),  # choice
    "texts": Layout(by_unit=True),  # similarity
}
SHAPES = Shapes(budget=512, lengths=(16,), crowding=2.0)


def made_up(name, draw, many, *, unknown=0.2, outputs=3):
    """Units of random inputs whose ids tell them apart; some of their targets are unknown."""
    units, number = [], 0
    for _ in range(many):
        size = draw.integers(2, 5) if LAYOUTS[name].by_unit else 1
        chosen = draw.integers(size)
        unit, unseen = [], draw.random() < unknown
        for _ in range(size):
            length, number = int(draw.integers(2, 17)), number + 1
            places = np.zeros(1, np.int64)
            if name == "words":
                places = np.sort(draw.choice(length, draw.integers(1, length), replace=False))
                targets = draw.integers(outputs, size=len(places))
                targets[draw.random(len(places)) < unknown] = NOTHING
            elif name == "spans":
                places, targets = np.arange(length), np.sort(draw.integers(length, size=2))
            elif name == "options":
                targets = np.array([chosen])
            elif name == "texts":
                targets = np.array([draw.random()], np.float32)
            else:
                targets = draw.integers(outputs, size=1)
            if unseen and name != "words":
                targets = nothing_like(targets)
            unit.append(Input(1 + (np.arange(length) + 20 * number) % 997, np.arange(length) % 2, places, targets))
        units.append(unit)
    return units


@pytest.mark.parametrize("shapes", [None, SHAPES], ids=["free", "fixed"])
@pytest.mark.parametrize("name", LAYOUTS)
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_places_groups_and_targets_point_to_their_tokens(name, shapes, seed, many):
    units, layout = made_up(name, np.random.default_rng(seed), many), LAYOUTS[name]
    data = pack_units(units, layout, shapes)
    inputs = [one for unit in units for one in unit]
    told = [(one, place) for one in inputs for place in one.places]
    assert data.tokens == sum(map(len, inputs))
    assert data.batch.ids[data.places[: len(told)]].tolist() == [one.ids[place] for one, place in told]
    assert data.batch.segments[data.places[: len(told)]].tolist() == [one.segments[place] for one, place in told]
    owners = units if layout.by_unit else [[one] for one in inputs]
    assert data.groups[: len(told)].tolist() == [g for g, own in enumerate(owners) for one in own for _ in one.places]
    known = [own[0].targets for own in owners] if layout.by_unit else [one.targets for one in inputs]
    if layout.picks:
        for row, own, targets in zip(data.targets.tolist(), owners, known, strict=False):
            seen = [one.ids[place] for one in own for place in one.places]
            for at, target in zip(row, targets, strict=True):
                assert at == NOTHING if target == NOTHING else data.batch.ids[data.places[at]] == seen[target]
        counted = sum(bool(is_known(targets).any()) for targets in known)
    else:
        flat = np.concatenate(known)
        np.testing.assert_array_equal(data.targets[: len(flat)], flat)
        counted = int(is_known(flat).sum())
    assert data.known == counted == data.count("loss")


@pytest.mark.parametrize("name", ["first", "words", "spans", "options"])
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_filler_of_a_fixed_shape_has_no_target(name, seed, many):
    units, layout = made_up(name, np.random.default_rng(seed), many), LAYOUTS[name]
    free, fixed = pack_units(units, layout), pack_units(units, layout, SHAPES)
    assert (fixed.known, fixed.tokens) == (free.known, free.tokens)
    real = len(free.places)
    assert not is_known(fixed.targets[len(free.targets) :].numpy()).any()
    assert (fixed.groups[real:] > free.groups.max()).all()
    assert ((fixed.places >= 0) & (fixed.places < SHAPES.budget)).all()
    assert len(fixed.batch.ids) == SHAPES.budget
    sizes = {
        tuple(getattr(pack_units(some, layout, SHAPES), field).shape) for some in (units, units[:1]) for field in FIELDS
    }
    assert len(sizes) <= 3  # as many as there are fields: the same whatever is in the row


FIELDS = ("places", "groups", "targets")


class Told(Task):
    """Nothing but a loss and how many outputs it has."""

    def __init__(self, loss, outputs, pooled):
        super().__init__(TaskSettings(labels=tuple(map(str, range(outputs)))))
        self.loss, self.pooled = loss, pooled

    def units(self, records, tokenizer): ...
    def answers(self, records, units, logits): ...
    def gold(self, records): ...


LOSSES = {  # by name: the layout, outputs, and how a target becomes the loss's own
    "classes": ("words", 3, lambda targets, draw: targets),
    "first_classes": ("first", 3, lambda targets, draw: targets),
    "flags": ("first", 4, lambda targets, draw: _rows(targets, draw.integers(2, size=(len(targets), 4)))),
    "numbers": ("first", 1, lambda targets, draw: _rows(targets, draw.normal(size=(len(targets), 1)))),
    "picks": ("spans", 2, lambda targets, draw: targets),
    "unit_picks": ("options", 1, lambda targets, draw: targets),
}


def _rows(targets, values):
    return np.where((targets == NOTHING)[:, None], np.nan, values).astype(np.float32)


def small(name, seed=0):
    layout, outputs, _ = LOSSES[name]
    config = Config(
        vocabulary=1000, layers=1, width=16, heads=2, feedforward=32, positions=16, dropout=0, attention_dropout=0
    )
    torch.manual_seed(seed)
    network = TaskNetwork(config, Told(name.rpartition("_")[2], outputs, layout in ("first", "options")))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network


def units_for(name, draw, many):
    layout, outputs, convert = LOSSES[name]
    units = made_up(layout, draw, many, outputs=outputs)
    return LAYOUTS[layout], [[replace(one, targets=convert(one.targets, draw)) for one in unit] for unit in units]


def sums_and_gradient(network, batches):
    network.zero_grad()
    sums = torch.stack([network(data) for data in batches]).sum(0)
    sums[0].backward()
    return sums.detach(), torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", LOSSES)
@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_fixed_shapes_give_the_same_sums_and_gradient(name, seed, many):
    layout, units = units_for(name, np.random.default_rng(seed), many)
    network = small(name, seed)
    free, free_gradient = sums_and_gradient(network, [pack_units(units, layout)])
    fixed, fixed_gradient = sums_and_gradient(network, [pack_units(units, layout, SHAPES)])
    assert free.isfinite().all()
    torch.testing.assert_close(fixed, free, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fixed_gradient, free_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_known_is_no_loss(name):
    layout, units = units_for(name, np.random.default_rng(3), 4)
    unknown = [[replace(one, targets=nothing_like(one.targets)) for one in unit] for unit in units]
    for shapes in (None, SHAPES):
        data = pack_units(unknown, layout, shapes)
        assert data.known == 0
        sums, gradient = sums_and_gradient(small(name), [data])
        assert sums.tolist() == [0, 0] and not gradient.any()


def feed_of(units, layout, *, fixed=False, **options):
    feed = InputFeed(units, layout, **(dict(batch=4, seed=0, row_tokens=10_000, grids=True) | options))
    if fixed:
        feed.fix_shapes()
    return feed


def nothing_like(targets):
    return np.full_like(targets, np.nan if targets.dtype.kind == "f" else NOTHING)


def seen(feed, cursor=0):
    """The rows of an epoch as the ids in them, step by step."""
    epoch, steps = cursor // EPOCH, []
    while cursor // EPOCH == epoch:
        rows, cursor = feed.rows(cursor)
        steps.append([row.batch.ids[: row.tokens].tolist() for row in rows])
    return steps


def flat(steps):
    return [token for step in steps for row in step for token in row]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9), st.integers(1, 60), st.sampled_from(["first", "options"])
)
def test_an_epoch_sees_every_unit_once(seed, many, batch, row_tokens, name):
    units = made_up(name, np.random.default_rng(seed), many)
    feed = feed_of(units, LAYOUTS[name], batch=batch, row_tokens=row_tokens, seed=seed % 1000)
    whole = sorted(token for unit in units for one in unit for token in one.ids.tolist())
    for epoch in (0, 1, 7):
        steps = seen(feed, epoch * EPOCH)
        assert sorted(flat(steps)) == whole
        assert len(steps) == feed.steps == -(-many // batch)
    own = [sum(map(len, unit)) for unit in units]
    for row in (row for step in seen(feed) for row in step):
        assert len(row) <= max(row_tokens, max(own))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(16, 60))
def test_rows_are_as_full_as_can_be(seed, row_tokens):
    """Each row but the last of a step had no room for the unit that comes next."""
    units = made_up("first", np.random.default_rng(seed), 30)
    rows, _ = feed_of(units, LAYOUTS["first"], batch=30, row_tokens=row_tokens).rows(0)
    for row, after in pairwise(rows):
        assert row.tokens + int(after.batch.boundaries[1]) > row_tokens


def test_a_row_longer_than_asked_holds_a_single_unit_or_fits_the_longest():
    """With one long unit the limit of a row is its length, and the others fill rows up to that."""
    units = [[Input(np.full(size, number + 1), np.zeros(size, int), np.zeros(1, int), np.zeros(1, int))]
             for number, size in enumerate([3] * 30 + [50])]  # fmt: skip
    feed = feed_of(units, Layout(), batch=31, row_tokens=10)
    rows, _ = feed.rows(0)
    assert max(row.tokens for row in rows) <= 50
    assert sum(row.known for row in rows) == 31


def numbered_units(many):
    """Unit i is three times the id i + 1."""
    return [[Input(np.full(3, i + 1), np.zeros(3, int), np.zeros(1, int), np.array([i % 2]))] for i in range(many)]


def order_of(feed, epoch):
    return flat(seen(feed, epoch * EPOCH))[::3]


def test_each_epoch_has_another_order_and_a_seed_always_the_same():
    units = numbered_units(50)
    feed = feed_of(units, Layout())
    orders = [tuple(order_of(feed, epoch)) for epoch in range(5)]
    assert len(set(orders)) == 5
    assert all(sorted(order) == list(range(1, 51)) for order in orders)
    assert orders == [tuple(order_of(feed_of(units, Layout()), epoch)) for epoch in range(5)]
    assert orders[0] != tuple(order_of(feed_of(units, Layout(), seed=1), 0))
    assert orders[0] == tuple(order_of(feed_of(units, Layout(), batch=7, row_tokens=9), 0))  # however it is cut up


@pytest.mark.parametrize("fixed", [False, True])
def test_any_cursor_gives_the_same_rows_to_a_new_feed(fixed):
    units = made_up("words", np.random.default_rng(1), 23)
    options = dict(batch=5, row_tokens=40, fixed=fixed)
    feed, cursor, visited = feed_of(units, LAYOUTS["words"], **options), 0, []
    for _ in range(12):
        rows, behind = feed.rows(cursor)
        visited.append((cursor, rows, behind))
        cursor = behind
    assert len({cursor for cursor, _, _ in visited}) == 12
    for cursor, rows, behind in reversed(visited):
        again, after = feed_of(units, LAYOUTS["words"], **options).rows(cursor)
        assert after == behind and len(again) == len(rows)
        for one, other in zip(rows, again, strict=True):
            assert torch.equal(one.batch.ids, other.batch.ids) and torch.equal(one.batch.boundaries, other.batch.boundaries)
            assert all(torch.equal(getattr(one, field), getattr(other, field)) for field in FIELDS)
            assert (one.known, one.tokens) == (other.known, other.tokens)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_cut_into_several_give_the_sums_of_one(name, fixed):
    layout, units = units_for(name, np.random.default_rng(5), 12)
    network = small(name)
    (whole,), _ = feed_of(units, layout, batch=12).rows(0)
    parts, _ = feed_of(units, layout, batch=12, row_tokens=24, fixed=fixed).rows(0)
    assert len(parts) > 3
    assert sum(part.known for part in parts) == whole.known
    for one, other in zip(sums_and_gradient(network, [whole]), sums_and_gradient(network, parts), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["first", "words", "spans", "options"])
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 20), st.sampled_from([20, 130, 300, 10_000]))
def test_fixed_rows_have_at_most_two_shapes_and_always_fit(name, seed, many, batch, row_tokens):
    units = made_up(name, np.random.default_rng(seed), many)
    feed = feed_of(units, LAYOUTS[name], batch=batch, row_tokens=row_tokens, fixed=True)
    shapes = set()
    for epoch in range(3):
        cursor = epoch * EPOCH
        while cursor // EPOCH == epoch:
            rows, cursor = feed.rows(cursor)
            for row in rows:
                grids = tuple(tuple(bucket.tokens.shape) for bucket in row.batch.buckets)
                tensors = (row.batch.ids, row.batch.boundaries, *(getattr(row, field) for field in FIELDS))
                shapes.add((*(tuple(tensor.shape) for tensor in tensors), grids, row.batch.longest))
    assert 1 <= len(shapes) <= 2


@pytest.mark.parametrize("fixed", [False, True])
def test_without_grids_the_rest_is_the_same(fixed):
    units = made_up("spans", np.random.default_rng(2), 6)
    (one,), _ = feed_of(units, LAYOUTS["spans"], batch=6, fixed=fixed).rows(0)
    (other,), _ = feed_of(units, LAYOUTS["spans"], batch=6, fixed=fixed, grids=False).rows(0)
    assert torch.equal(one.batch.boundaries, other.batch.boundaries) and not other.batch.buckets
    assert all(torch.equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def test_a_row_without_places_has_no_loss():
    """A window in the middle of a long word holds no first piece."""
    empty = Input(np.arange(1, 6), np.zeros(5, int), np.zeros(0, np.int64), np.zeros(0, np.int64))
    data = pack_units([[empty]], LAYOUTS["words"])
    assert data.known == 0 and len(data.places) == 0
    assert small("classes")(data).tolist() == [0, 0]


def test_inputs_of_which_nothing_is_known_are_packed():
    one = Input(np.arange(1, 6), np.zeros(5, int), np.zeros(1, np.int64), np.array([NOTHING]))
    assert pack_units([[one], [one]], Layout()).known == 0


def test_a_batch_moves_as_a_whole():
    data = pack_units(made_up("spans", np.random.default_rng(0), 3), LAYOUTS["spans"])
    moved = data.to("meta")
    assert {tensor.device.type for tensor in (moved.batch.ids, moved.places, moved.groups, moved.targets)} == {"meta"}
    assert (moved.known, moved.tokens) == (data.known, data.tokens)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_filled_up_to_few_lengths_give_the_same_sums(name):
    layout, units = units_for(name, np.random.default_rng(5), 12)
    network, feed = small(name), feed_of(units, layout, batch=12)
    (plain,), _ = feed.rows(0)
    feed.stepped = True
    (filled,), _ = feed.rows(0)
    assert len(filled.batch.ids) == stepped(len(plain.batch.ids)) > len(plain.batch.ids)
    assert (filled.known, filled.tokens) == (plain.known, plain.tokens)
    for one, other in zip(sums_and_gradient(network, [plain]), sums_and_gradient(network, [filled]), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
