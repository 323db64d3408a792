"""Requests share batches, and each gets its own answers, whatever happens to the others."""

from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier, Event

import numpy as np
import pytest
from support.stories import stories

from bertkit.errors import InputError
from bertkit.serve.batching import Batcher, Busy, QueueFull

SOON = 10  # seconds in which anything here must have happened


class Echo:
    """Answers a text with itself, when its door is open; remembers the calls."""

    budget = 100

    def __init__(self):
        self.calls, self.begun, self.door = [], Event(), Event()

    def embed(self, texts, pairs=None, **settings):
        self.begun.set()
        assert self.door.wait(SOON)
        self.calls.append((list(texts), settings))
        if "bad" in texts:
            raise InputError(f"text {texts.index('bad') + 1} is bad")
        return [(text, *settings.values()) for text in texts]


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def batcher(echo):
    """Its worker is held up by a first request until the door opens."""
    batcher = Batcher(echo, queue=20)
    batcher.ask("embed", ["first"], tokens=1)
    assert echo.begun.wait(SOON)
    yield batcher
    echo.door.set()
    batcher.close()


def finish(batcher):
    batcher.model.door.set()
    batcher.close()
    return batcher.model.calls[1:]


def test_what_waits_shares_a_call_and_everybody_gets_their_own(batcher):
    futures = [batcher.ask("embed", [f"a{n}", f"b{n}"], tokens=4) for n in range(8)]
    assert batcher.waiting == 16
    assert [texts for texts, _ in finish(batcher)] == [[f"{letter}{n}" for n in range(8) for letter in "ab"]]
    assert [future.result(SOON) for future in futures] == [[(f"a{n}",), (f"b{n}",)] for n in range(8)]


def test_a_budget_of_tokens_cuts_batches_and_a_large_request_goes_alone(batcher):
    for name, tokens in (("a", 60), ("b", 40), ("c", 50), ("d", 500), ("e", 1)):
        batcher.ask("embed", [name], tokens=tokens)
    assert [texts for texts, _ in finish(batcher)] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_other_settings_are_another_call_but_no_reason_to_wait(batcher):
    futures = [batcher.ask("embed", [str(n)], tokens=1, top=n % 2) for n in range(4)]
    assert [texts for texts, _ in finish(batcher)] == [["0", "2"], ["1", "3"]]
    assert [future.result(SOON) for future in futures] == [[("0", 0)], [("1", 1)], [("2", 0)], [("3", 1)]]


def test_several_workers_answer_side_by_side_and_all_end():
    """Both calls meet: neither ends before the other has begun."""
    meet, model = Barrier(2, timeout=SOON), Echo()
    model.embed = lambda texts: [(meet.wait() * 0, text) for text in texts[:1]]
    batcher = Batcher(model, workers=2, wait=0.0)
    futures = [batcher.ask("embed", [name], tokens=200) for name in "ab"]
    assert [future.result(SOON) for future in futures] == [[(0, "a")], [(0, "b")]]
    batcher.close()
    assert not any(worker.is_alive() for worker in batcher._workers)


def test_cancelled_requests_cost_nothing(batcher):
    gone, kept = batcher.ask("embed", ["gone"] * 20, tokens=9), None
    assert gone.cancel()
    assert batcher.waiting == 0
    kept = batcher.ask("embed", ["kept"] * 20, tokens=9)
    assert [texts for texts, _ in finish(batcher)] == [["kept"] * 20]
    assert len(kept.result(SOON)) == 20
    with pytest.raises(CancelledError):
        gone.result(SOON)


def test_a_bad_text_fails_its_own_request_alone(batcher):
    futures = [batcher.ask("embed", [text], tokens=1) for text in ("a", "b", "bad", "c", "d", "e")]
    finish(batcher)
    with pytest.raises(InputError, match="text 1 is bad"):
        futures.pop(2).result(SOON)
    assert [future.result(SOON)[0][0] for future in futures] == ["a", "b", "c", "d", "e"]


def test_a_full_queue_says_so(batcher):
    batcher.ask("embed", ["x"] * 19, tokens=19)
    with pytest.raises(QueueFull, match="19 texts wait and 20 may"):
        batcher.ask("embed", ["y"] * 2, tokens=2)
    batcher.ask("embed", ["z"], tokens=1)


def test_a_closed_queue_finishes_what_it_took(echo):
    batcher = Batcher(echo, wait=SOON)
    futures = [batcher.ask("embed", [str(n)], tokens=1) for n in range(5)]
    echo.door.set()
    batcher.close()
    assert [future.result(0) for future in futures] == [[(str(n),)] for n in range(5)]
    with pytest.raises(Busy, match="shutting down"):
        batcher.ask("embed", ["late"], tokens=1)


def test_columns_have_as_many_rows(batcher):
    with pytest.raises(InputError, match="pairs are 1 for 2 texts"):
        batcher.ask("embed", ["a", "b"], ["c"], tokens=3)


def test_many_clients_get_the_models_own_answers(model):
    texts = [line for story in stories(40) for line in story.split("\n")][:64]
    sizes = []
    batcher = Batcher(model, wait=0.05, seen=sizes.append)
    with ThreadPoolExecutor(64) as clients:
        found = list(clients.map(lambda text: batcher.ask("embed", [text], tokens=9).result(SOON)[0], texts))
    batcher.close()
    np.testing.assert_allclose(found, model.embed(texts), atol=1e-5)
    assert sum(sizes) == 64
    assert max(sizes) > 1


def test_many_texts_show_no_bar_in_a_server(model, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "bertkit.serve.predictor.bar", lambda title, count: shown.append(count) or nullcontext(lambda done: None)
    )
    texts = ["mara is a baker"] * 300
    model.embed(texts[:255])
    assert shown == []
    model.embed(texts)
    assert shown == [300]
    batcher = Batcher(model)
    assert len(batcher.ask("embed", texts, tokens=300 * 6).result(SOON)) == 300
    batcher.close()
    assert shown == [300]


def test_a_request_cancelled_as_its_batch_is_taken_stays_out_of_it(batcher):
    gone, kept = (batcher.ask("embed", [name], tokens=1) for name in ("gone", "kept"))
    take = batcher._take
    batcher._take = lambda: (take(), gone.cancel())[0]
    assert [texts for texts, _ in finish(batcher)] == [["kept"]]
    assert kept.result(SOON) == [("kept",)]
