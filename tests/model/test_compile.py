"""torch.compile sees one graph without breaks, and few shapes over a mixed-length data set."""

import numpy as np
import pytest
import torch
from support.batches import pack
from support.stores import made_up_store
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from bertkit.bundle.runner import Runner
from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.packing import Shapes, batches, lay
from bertkit.model.config import sized
from bertkit.model.encoder import Encoder
from bertkit.recipes import RECIPES, find_recipe
from bertkit.tasks.objectives import JUDGED, OBJECTIVES
from bertkit.tasks.pretraining import Pretraining

SHAPES = Shapes(budget=1024, lengths=(32, 64, 128, 256, 512))


def mixed_lengths(count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    sizes = np.minimum(2 + draw.lognormal(4, 1, count).astype(int), 512)
    return [draw.integers(0, 100, size) for size in sizes]


def test_a_mixed_data_set_compiles_at_most_eight_times():
    torch._dynamo.reset()
    encoder = Encoder(sized("tiny", vocabulary=100)).eval()
    counter = CompileCounter()
    compiled = torch.compile(encoder, backend=counter, fullgraph=True, dynamic=False)
    sequences = mixed_lengths(400)
    with torch.no_grad():
        for members, laid in batches(sequences, shapes=SHAPES):
            batch = laid.map(torch.from_numpy)
            torch.testing.assert_close(compiled(batch), encoder(batch), atol=1e-5, rtol=0)
            assert len(members) <= SHAPES.sequences(batch.longest)
    assert 1 < counter.frame_count <= 8


@pytest.mark.parametrize("training", [False, True])
def test_inductor_gives_the_same_numbers(training):
    torch._dynamo.reset()
    encoder = Encoder(sized("tiny", vocabulary=100, layers=1, dropout=0.0, attention_dropout=0.0)).train(training)
    compiled = torch.compile(encoder, fullgraph=True, dynamic=False)
    batch = next(iter(batches(mixed_lengths(20), shapes=SHAPES)))[1].map(torch.from_numpy)
    with torch.set_grad_enabled(training):
        x = compiled(batch)
        torch.testing.assert_close(x, encoder(batch), atol=1e-5, rtol=0)
    if training:
        x.square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_a_runner_compiles_one_block_for_all(monkeypatch):
    torch._dynamo.reset()
    counter, compile = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, options, **settings: compile(module, backend=counter, **settings))
    network = Pretraining(sized("tiny", vocabulary=100, layers=6), next_sentence=False)
    plain, runner = Runner(network, "cpu", "fp32"), Runner(network, "cpu", "fp32", compile=True)
    for _, batch in batches(mixed_lengths(20), shapes=Shapes(budget=512, lengths=(512,))):
        np.testing.assert_allclose(runner.vectors(batch), plain.vectors(batch), atol=1e-5)
        np.testing.assert_allclose(runner.pooled(batch, "cls"), plain.pooled(batch, "cls"), atol=1e-5)
    assert counter.frame_count == 3  # embeddings, a block, and the last one where not all tokens are wanted
    for size in range(1, 9):
        network.encoder(pack([np.ones(size, np.int64)]))
    assert counter.frame_count == 3  # who else has the network is left alone
    assert all(map(torch.equal, runner.encoder.parameters(), network.encoder.parameters()))
    assert next(runner.encoder.parameters()) is next(network.encoder.parameters())


def test_threads_take_turns_at_what_compiles(monkeypatch):
    """Each length is compiled when it first comes, which no second thread may run into."""
    torch._dynamo.reset()
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, options, **settings: compile(module, backend="eager", **settings))
    network = Pretraining(sized("tiny", vocabulary=100, layers=2), next_sentence=False)
    plain, runner = Runner(network, "cpu", "fp32"), Runner(network, "cpu", "fp32", compile=True)
    texts = [text[: 4 + index % 120] for index, text in enumerate(mixed_lengths(300))]
    cut = dict(shapes=Shapes(budget=512, lengths=(16, 32, 64, 128, 512)), threads=4)
    for members, vectors in batches(texts, None, lambda batch: runner.pooled(batch, "mean"), **cut):
        expected = plain.pooled(lay([texts[index] for index in members]), "mean")
        np.testing.assert_allclose(vectors[: len(members)], expected, atol=1e-5)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up_store(tmp_path_factory.mktemp("store") / "s", 50, pieces=300)


@pytest.fixture(params=["cpu", "cuda"])
def narrow_device(request):
    """A device whose autocast is on. Of a GPU no more is needed than that torch was built for one."""
    if request.param == "cuda" and not torch.version.cuda:
        pytest.skip("torch was built without CUDA")
    torch.set_autocast_dtype(request.param, torch.bfloat16)
    torch.set_autocast_enabled(request.param, True)
    yield request.param
    torch.set_autocast_enabled(request.param, False)


@pytest.mark.parametrize("name", [name for name in RECIPES if name == "bert-base" or not name.startswith("bert-")])
def test_a_step_of_every_recipe_is_one_graph(name, store, narrow_device):
    """Followed by the compiler with tensors that hold no numbers."""
    torch._dynamo.reset()
    recipe, counter = find_recipe(name), CompileCounter()
    sizes = dict(vocabulary=300, layers=2, width=64, heads=2, feedforward=128, pooler=recipe.pairs != "none")
    config = recipe.config.with_(**sizes)
    told = dict(generator=0.5) if recipe.objective in JUDGED else dict(next_sentence=config.pooler)
    settings = ExampleSettings(pairs=recipe.pairs, length=128, masking=recipe.masking)
    grids = narrow_device == "cpu" or config.needs_grids
    source = ExampleSource(store, settings, seed=0, tokens=512, grids=grids)
    row = source.batch(source.next_row(0)[0])
    with FakeTensorMode() as mode, torch.device(narrow_device):
        network = OBJECTIVES[recipe.objective](config, **told).train()
        data = row.map(lambda tensor: mode.from_tensor(tensor).to(narrow_device))
        sums = torch.compile(network, backend=counter, fullgraph=True, dynamic=False)(data)
    assert sums.device.type == narrow_device and sums.shape == (len(network.names),)
    assert counter.frame_count == 1
