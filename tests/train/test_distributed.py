"""One rank or two, one row or several: the same examples, the same gradient, the same losses."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.runs import SMALL_RUN, metrics, without_dropout
from support.stores import made_up_tokenizer

import bertkit
from bertkit.data.store import Piece, write_manifest, write_shard
from bertkit.train.recipe import Phase

# Examples of exactly 32 tokens fill rows of any multiple of it, so that a step's examples do not depend on the rows' size.
EXACT = replace(without_dropout(SMALL_RUN), pairs="none", short=0.0, phases=(Phase(length=32),), steps=20, log_every=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    (folder / "tokenizer").mkdir()
    made_up_tokenizer().write_files(folder / "tokenizer")
    ids = (5 + np.minimum(np.random.default_rng(0).zipf(1.3, 60_000), 1995) - 1).astype(np.uint16)
    shard = write_shard(folder, 0, [Piece(ids, np.full(4000, 15), np.full(400, 10))])
    write_manifest(folder, [shard], np.dtype(np.uint16), {"settings": {}, "dropped": {}})
    return folder


@pytest.fixture(scope="module")
def one_row(tmp_path_factory, store):
    """One rank, a step's examples in one row."""
    run = tmp_path_factory.mktemp("runs") / "one"
    bertkit.pretrain(store, run, recipe=replace(EXACT, row_tokens=1024), device="cpu", quiet=True)
    return run


def assert_same_losses(a, b):
    for ours, theirs in zip(metrics(a), metrics(b), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)


def test_accumulation_is_one_big_batch(store, one_row, tmp_path):
    bertkit.pretrain(store, tmp_path / "r", recipe=replace(EXACT, row_tokens=256), device="cpu", quiet=True)
    assert_same_losses(tmp_path / "r", one_row)


CODE = """
import sys
from dataclasses import replace
from pathlib import Path
import bertkit, torch
from train.test_distributed import EXACT
torch.set_num_threads(1)
store, run, *flags = sys.argv[1:]
recipe = replace(EXACT, row_tokens=256, compile="compile" in flags)
if "muon" in flags:
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, kind="muon"))
bertkit.pretrain(store, run, recipe=recipe, device="cpu", quiet=True, shard="shard" in flags)
left = [name for file in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := file.read_text())]
assert not left, f"threads that would be aborted when Python ends: {left}"
"""


def run_ranks(folder, store, *flags):
    """A run in folder / "r" by two processes."""
    (folder / "main.py").write_text(CODE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", folder / "main.py", store, folder / "r", *flags]
    path = os.pathsep.join([*sys.path, str(next(p for p in sys.path if p.endswith("tests")))])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "r"


def test_two_ranks_are_one(store, one_row, tmp_path):
    assert_same_losses(run_ranks(tmp_path, store), one_row)


def test_a_sharded_model_is_a_whole_one(store, one_row, tmp_path):
    """Two ranks with half of the model each; then the rest of the run again, by one rank with all of it."""
    run = run_ranks(tmp_path, store, "shard")
    assert_same_losses(run, one_row)
    assert_same_weights(run, one_row)
    last = run / "checkpoints" / "00000020"
    assert len(list(last.glob("*.safetensors"))) == 2
    shutil.rmtree(last)
    bertkit.pretrain(store, run, recipe=replace(EXACT, row_tokens=256), device="cpu", quiet=True)
    assert_same_losses(run, one_row)
    assert_same_weights(run, one_row)


def test_a_sharded_model_compiles(store, one_row, tmp_path):
    assert_same_losses(run_ranks(tmp_path, store, "shard", "compile"), one_row)


def test_muon_s_matrices_are_whole_though_they_are_sharded(store, tmp_path):
    recipe = replace(EXACT, optimizer=replace(EXACT.optimizer, kind="muon"))
    bertkit.pretrain(store, tmp_path / "one", recipe=recipe, device="cpu", quiet=True)
    for ours, theirs in zip(metrics(run_ranks(tmp_path, store, "shard", "muon")), metrics(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(theirs, rel=0.01)  # it computes in bf16


def assert_same_weights(a, b):
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (a, b))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-4, rtol=0)
