import os
import pickle
from concurrent.futures import Future
from contextlib import closing

import pytest
import torch
from support.stores import made_up_store

from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.loader import Loader
from bertkit.errors import InputError


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    store = made_up_store(tmp_path_factory.mktemp("store") / "s", 200)
    return [ExampleSource(store, ExampleSettings(length=length), seed=0, tokens=512) for length in (32, 64)]


def ids(steps):
    return [[row.batch.ids.tolist() for row in step.rows] for step in steps]


def take(loader, asked):
    """The steps for a list of (phase, rows), each from where the one before ended."""
    steps, cursor, last = [], 0, 0
    for phase, rows in asked:
        cursor, last = (0, phase) if phase != last else (cursor, last)
        steps.append(loader.step(phase, rows, cursor))
        cursor = steps[-1].cursor
    return steps


ASKED = [(0, 2), (0, 2), (0, 4), (0, 4), (1, 4), (1, 1)]


def test_looking_ahead_changes_nothing(sources):
    with closing(Loader(sources)) as plain, closing(Loader(sources, workers=2)) as ahead:
        assert ids(take(plain, ASKED)) == ids(take(ahead, ASKED))


def test_ranks_share_the_rows_of_one_order(sources):
    with (
        closing(Loader(sources)) as alone,
        closing(Loader(sources, rank=0, world=2)) as first,
        closing(Loader(sources, rank=1, world=2)) as second,
    ):
        for whole, a, b in zip(take(alone, ASKED[:4]), take(first, ASKED[:4]), take(second, ASKED[:4]), strict=True):
            assert whole.cursor == a.cursor == b.cursor
            expected = [row.batch.ids for row in whole.rows]
            assert all(torch.equal(x.batch.ids, y) for x, y in zip(a.rows, expected[0::2], strict=True))
            assert all(torch.equal(x.batch.ids, y) for x, y in zip(b.rows, expected[1::2], strict=True))


def test_the_first_step_does_not_wait_for_the_processes(sources):
    with closing(Loader(sources)) as plain, closing(Loader(sources, workers=1)) as ahead:
        ahead.pool.submit = lambda *unit: Future()
        assert ids(take(ahead, ASKED[:1])) == ids(take(plain, ASKED[:1]))


def test_sources_fit_the_pipe_to_a_new_process(sources):
    """64 KB; to write more is to wait until the process is there to read."""
    assert len(pickle.dumps(sources)) < 2**14
    copies = pickle.loads(pickle.dumps(sources))
    with closing(Loader(sources)) as mine, closing(Loader(copies)) as theirs:
        assert ids(take(mine, ASKED)) == ids(take(theirs, ASKED))


def test_a_process_that_was_killed_is_told(sources):
    with closing(Loader(sources, workers=1)) as ahead:
        ahead.pool.submit(os._exit, 9)
        with pytest.raises(InputError, match="a worker was killed, perhaps for memory; run again with fewer --workers"):
            take(ahead, ASKED[:2] * 20)
