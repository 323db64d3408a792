import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from bertkit.data.engines import ENGINES, MANY, ahead, local, one_of_many
from bertkit.errors import InputError


class Doubler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, unit):
        if unit == 13:
            raise ValueError("unit 13")
        return self.factor * unit


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    with local(partial(Doubler, 2), workers) as run:
        assert list(run(iter(range(12)))) == list(range(0, 24, 2))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_in_a_worker_reaches_the_caller(workers):
    with pytest.raises(ValueError, match="unit 13"), local(partial(Doubler, 2), workers) as run:
        list(run(iter(range(20))))


def test_units_are_taken_only_as_they_are_worked_on():
    taken = []

    def units():
        for unit in range(1000):
            taken.append(unit)
            yield unit

    with local(partial(Doubler, 2), 2) as run:
        next(run(units()))
    assert len(taken) < 10


def test_processes_end_with_the_one_that_made_them():
    code = """if __name__ == "__main__":
    import os
    from functools import partial
    from bertkit.data.engines import processes, work
    pool = processes(partial(partial, eval), 1)  # its worker is eval
    print(pool.submit(work, "__import__('os').getpid()").result(), flush=True)
    os.kill(os.getpid(), 9)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
    for _ in range(200):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError(f"process {child} still waits for work")


def test_engines_have_names():
    assert list(ENGINES) == ["local", "ray"]


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes on this machine."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_store_bit_for_bit(cluster, tokenizer, tmp_path, monkeypatch):
    from data.test_prepare import fingerprint
    from support.stories import stories

    from bertkit.data import prepare
    from bertkit.text.corpus import Corpus

    monkeypatch.setattr(prepare, "UNIT", 2000)
    (tmp_path / "corpus.txt").write_text("\n\n".join(stories(60)))
    corpus = Corpus([tmp_path / "corpus.txt"])
    assert len([node for node in cluster.nodes() if node["Alive"]]) == 2
    for engine in ("local", "ray"):
        prepare.prepare_store(corpus, tokenizer, tmp_path / engine, engine=engine, workers=2, shard_tokens=2000)
    assert fingerprint(tmp_path / "local") == fingerprint(tmp_path / "ray")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("texts", [0, 1, MANY])
def test_working_ahead_changes_nothing(texts, threads):
    done = list(ahead(str, len, range(texts), texts=texts, threads=threads))
    assert done == [(number, len(str(number))) for number in range(texts)]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_goes_wrong_ahead_is_told(threads):
    for lay, use in ((lambda number: 1 // (5 - number), str), (str, lambda text: 1 // (5 - int(text)))):
        with pytest.raises(ZeroDivisionError):
            list(ahead(lay, use, range(9), texts=MANY, threads=threads))


def test_two_threads_use_two_units_at_once():
    meet = threading.Barrier(2, timeout=30)
    assert len(list(ahead(str, lambda text: meet.wait(), range(MANY), texts=MANY, threads=2))) == MANY


def survives(unit):
    os.kill(os.getpid(), (signal.SIGINT, signal.SIGTERM)[unit % 2])
    return True


def test_processes_leave_signals_to_the_one_that_made_them():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ENGINES["local"](make_survivor, 2) as run:
        assert list(run(range(8))) == [True] * 8
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_that_was_killed_is_told_and_the_others_end():
    said = "a worker was killed, perhaps for memory; run again with fewer --workers"
    with pytest.raises(InputError, match=said), local(make_killer, 2) as run:
        list(run(range(20)))
    assert not multiprocessing.active_children()


def make_survivor():
    return survives


def fails_at_seven(unit):
    return os.kill(os.getpid(), signal.SIGKILL) if unit == 7 else unit


def make_killer():
    return fails_at_seven


def test_a_thread_knows_whether_it_is_one_of_several():
    for texts, threads, expected in ((MANY, 2, True), (MANY, 1, False), (MANY - 1, 2, False)):
        told = [
            found
            for _, found in ahead(lambda unit: one_of_many(), lambda found: found, range(9), texts=texts, threads=threads)
        ]
        assert told == [expected] * 9
    assert not one_of_many()
