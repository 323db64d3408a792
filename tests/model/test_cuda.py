"""The packed kernel on CUDA: the same numbers as the grids, dropout, and one graph when compiled."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.batches import pack
from support.reference import draw_sequences

from bertkit.data.packing import Shapes, batches
from bertkit.model.attention import attend
from bertkit.model.config import sized
from bertkit.model.dropout import Dropout, random_key
from bertkit.model.encoder import Encoder
from bertkit.model.feedforward import activated, gated
from bertkit.model.norm import Norm
from bertkit.model.positions import turned

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from bertkit.model.kernels.added_norm import added_norm_with_gradient
from bertkit.model.kernels.gelu import quick_gated_gelu, quick_gelu
from bertkit.model.kernels.short import attend_short
from bertkit.model.kernels.tiles import attend_tiles
from bertkit.model.kernels.turning import turned_with_gradient

SIZES = [5, 512, 1, 128, 127, 300, 2, 64]
SHAPES = Shapes(budget=2048, lengths=(32, 64, 128, 256, 512))


SHORT = [5, 1, 128, 127, 2, 64]
ROWS = {"flash": [2100, *SIZES], "tiles": SIZES, "short": SHORT, "shorter": [3, 31, 1], "many": SHORT * 100}


@pytest.fixture(params=ROWS.values(), ids=list(ROWS))
def batch(request):
    return pack(*draw_sequences(request.param, 1000)).to("cuda")


def draw_qkv(batch, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(len(batch.ids), 3, 12, 64, device="cuda", dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_the_packed_kernel_agrees_with_the_grids(batch, causal):
    qkv = draw_qkv(batch, torch.bfloat16)
    packed, grids = attend(qkv, batch, 0.0, causal), attend(qkv.float(), batch, 0.0, causal)
    torch.testing.assert_close(packed.float(), grids, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_packed_kernel_agree(batch, causal):
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        qkv = draw_qkv(batch, torch.bfloat16).to(dtype).requires_grad_()
        attend(qkv, batch, 0.0, causal).square().sum().backward()
        gradients.append(qkv.grad.float())
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()


def test_the_packed_kernel_drops(batch):
    """With values of one, each output is the share of weights kept over the keeping rate: one on average."""
    qkv = draw_qkv(batch, torch.bfloat16)
    qkv[:, 2] = 1
    mixed = torch.stack([attend(qkv, batch, 0.1) for _ in range(20)]).float()
    assert abs(mixed.mean() - 1) < 0.02
    assert mixed.std() > 0.01
    qkv.requires_grad_()
    attend(qkv, batch, 0.1).sum().backward()
    assert torch.isfinite(qkv.grad).all()


@pytest.mark.parametrize("kernel", [attend_short, lambda *inputs: attend_tiles(*inputs)[0]], ids=["short", "tiles"])
def test_gradients_know_what_was_dropped(kernel):
    """Values that are unit vectors show the weights themselves; with the same ones dropped, plain torch agrees."""
    batch = pack(*draw_sequences([64], 1000)).to("cuda")
    qkv = draw_qkv(batch, torch.bfloat16)
    qkv[:, 2] = torch.eye(64, device="cuda", dtype=torch.bfloat16)[:, None]
    qkv.requires_grad_()
    weights = kernel(qkv, batch.boundaries, random_key(qkv.device), 64, 0.3, False)  # [64, H, 64]
    upper = torch.randn_like(weights)
    weights.backward(upper)
    kept = weights.detach() > 0
    assert abs(kept.float().mean() - 0.7) < 0.02
    plain = qkv.detach().float().requires_grad_()
    q, k, v = plain.permute(1, 2, 0, 3)
    dropped = (q @ k.mT / 8).softmax(-1) * kept.transpose(0, 1) / 0.7
    (dropped @ v).transpose(0, 1).backward(upper.float())
    assert (qkv.grad.float() - plain.grad).norm() < 0.02 * plain.grad.norm()


@pytest.mark.parametrize("empty", [1, 3000])
@pytest.mark.parametrize("length", [16, 128])
def test_sequences_without_tokens_do_not_matter(length, empty):
    found, bounds = [], torch.arange(0, 101, device="cuda", dtype=torch.int32) * (length - 3)
    for more in (0, empty):
        torch.manual_seed(0)
        qkv = torch.randn(int(bounds[-1]), 3, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mixed = attend_short(
            qkv, F.pad(bounds, (0, more), value=int(bounds[-1])), random_key(qkv.device), length, 0.1, False
        )
        mixed.square().sum().backward()
        found.append((mixed, qkv.grad))
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


def test_operators_are_what_they_tell_the_compiler():
    """Shapes and types of results, what has a gradient, and that nothing given is changed."""
    width, bounds = 96, torch.tensor([0, 20, 50, 50], dtype=torch.int32, device="cuda")
    x, qkv = (torch.randn(50, *shape, device="cuda", requires_grad=True) for shape in ((width,), (3, 2, 16)))
    for operator, inputs in (
        (quick_gelu, (x, torch.randn(width, device="cuda", requires_grad=True))),
        (quick_gated_gelu, (x,)),
        (attend_short, (qkv, bounds, random_key(x.device), 32, 0.1, False)),
        (attend_tiles, (qkv, bounds, random_key(x.device), 192, 0.1, False)),
        (added_norm_with_gradient, (x, x.detach(), *torch.randn(2, width, device="cuda"), random_key(x.device), 1e-5, 0.1)),
        (added_norm_with_gradient, (x, None, x[0].detach(), None, random_key(x.device), 1e-5, 0.0)),
        (turned_with_gradient, (qkv, *torch.randn(2, 50, 8, device="cuda"), 1.0)),
    ):
        torch.library.opcheck(operator, inputs)


def test_the_same_bits_each_time():
    batch = pack(*draw_sequences(SIZES * 8, 1000)).to("cuda")
    found = []
    for _ in range(2):
        qkv = draw_qkv(batch, torch.bfloat16).requires_grad_()
        attend(qkv, batch, 0.0).square().sum().backward()
        found.append(qkv.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(1000, 3072), (131, 300), (1, 3)])
def test_gelu_is_gelu(shape, compiled):
    """A linear map that changes nothing but adds a bias, so that what is compared is bias and GELU."""
    torch.manual_seed(0)
    x, upper = (4 * torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    linear = torch.nn.Linear(shape[1], shape[1], device="cuda")
    torch.nn.init.eye_(linear.weight)
    exact, bias = x.double().requires_grad_(), linear.bias.detach().double().requires_grad_()
    narrow = x.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        mine = (torch.compile(activated, fullgraph=True) if compiled else activated)(narrow, linear, F.gelu)
    plain = F.gelu(exact + bias)
    mine.backward(upper)
    plain.backward(upper.double())
    torch.testing.assert_close(mine.double(), plain, atol=1e-5, rtol=0.005)  # half a step of bf16 is 0.004
    torch.testing.assert_close(narrow.grad.double(), exact.grad, atol=1e-5, rtol=0.005)
    assert linear.bias.grad.dtype == torch.float32
    torch.testing.assert_close(linear.bias.grad.double(), bias.grad, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1000, 768, 3072), (40, 384, 1536)])
def test_gelu_within_the_product_is_nearer_than_after_it(shape):
    torch.manual_seed(0)
    count, width, feedforward = shape
    linear = torch.nn.Linear(width, feedforward, device="cuda", dtype=torch.bfloat16)
    x = 2 * torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
    exact = F.gelu(F.linear(x.double(), linear.weight.double(), linear.bias.double()))
    with torch.inference_mode():
        mine, after = activated(x, linear, F.gelu).double(), F.gelu(linear(x)).double()
    assert (mine - exact).norm() <= (after - exact).norm()
    torch.testing.assert_close(mine, exact, atol=2e-3, rtol=0.005)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(1000, 2048), (131, 300), (1, 3)])
def test_gated_gelu_is_gelu_times_gate(shape, compiled):
    torch.manual_seed(0)
    h = 4 * torch.randn(shape[0], 2 * shape[1], device="cuda", dtype=torch.bfloat16)
    upper, exact = torch.randn(shape, device="cuda", dtype=torch.bfloat16), h.double().requires_grad_()
    mine = (torch.compile(gated, fullgraph=True) if compiled else gated)(h.requires_grad_(), F.gelu)
    plain = gated(exact, lambda x: F.gelu(x))
    mine.backward(upper)
    plain.backward(upper.double())
    torch.testing.assert_close(mine.double(), plain, atol=1e-5, rtol=0.005)
    torch.testing.assert_close(h.grad.double(), exact.grad, atol=1e-5, rtol=0.005)


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(1000, 768), (131, 300), (1, 3)])
def test_adding_and_normalising_in_one_kernel(shape, rate):
    """Results and all gradients, beside plain torch with the same values dropped."""
    torch.manual_seed(0)
    count, width = shape
    given = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    given += [torch.randn(width, device="cuda") for _ in range(2)]
    upper, key = torch.randn(shape, device="cuda", dtype=torch.bfloat16), random_key(torch.device("cuda"))
    zeros, ones = torch.zeros_like(upper), torch.ones_like(upper)
    kept = (
        added_norm_with_gradient(zeros, ones, ones[0].float(), zeros[0].float(), key, 1e-12, rate)[0] >= 0 if rate else ones
    )
    mine, exact = ([one.requires_grad_() for one in some] for some in (given, [one.double() for one in given]))
    found = added_norm_with_gradient(*mine, key, 1e-12, rate)[0]
    x, y, weight, bias = exact
    plain = F.layer_norm(x + y * kept / (1 - rate), (width,), weight, bias, 1e-12)
    found.backward(upper)
    plain.backward(upper.double())
    torch.testing.assert_close(found.double(), plain, atol=1e-3, rtol=0.005)
    assert abs(kept.float().mean() - (1 - rate)) < 0.02 or count == 1
    for one, other in zip(mine, exact, strict=True):
        assert (one.grad.double() - other.grad).norm() < 0.005 * other.grad.norm() + 1e-4


def test_a_norm_adds_and_drops_as_told():
    torch.manual_seed(0)
    norm, dropout = Norm(768, device="cuda"), Dropout(0.1)
    x, y = (torch.randn(100, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    exact = F.layer_norm(x.double() + y.double(), (768,), eps=norm.eps)
    assert not torch.equal(norm.added(x, y, dropout), norm.added(x, y, dropout))
    torch.testing.assert_close(norm.added(x, y, dropout.eval()).double(), exact, atol=1e-3, rtol=0.005)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(1000, 768), (131, 300), (1, 3)])
def test_normalising_in_one_kernel(shape, biased):
    torch.manual_seed(0)
    x, upper = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    norm, exact = (Norm(shape[1], bias=biased, device="cuda", dtype=type) for type in (torch.float32, torch.float64))
    given = [(norm, x.requires_grad_(), upper), (exact, x.detach().double().requires_grad_(), upper.double())]
    for module, values, gradient in given:
        module(values).backward(gradient)
    torch.testing.assert_close(norm(x).double(), exact(given[1][1]), atol=1e-3, rtol=0.005)
    for one, other in zip([x, *norm.parameters()], [given[1][1], *exact.parameters()], strict=True):
        assert (one.grad.double() - other.grad).norm() < 0.005 * other.grad.norm() + 1e-4


@pytest.mark.parametrize("shape", [(1000, 12, 64), (131, 2, 24), (1, 1, 2)])
def test_turning_in_one_kernel(shape):
    """Forth, and gradients back, beside the same turn of complex numbers in 64 bits."""
    torch.manual_seed(0)
    count, heads, width = shape
    qkv, upper = (torch.randn(count, 3, heads, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    angles = 500 * torch.rand(count, width // 2, device="cuda", dtype=torch.float64)
    mine, exact = qkv.requires_grad_(), qkv.detach().double().requires_grad_()
    found = turned(mine, angles.cos().float(), angles.sin().float())
    plain = turned_plainly(exact, angles)
    found.backward(upper)
    plain.backward(upper.double())
    torch.testing.assert_close(found.double(), plain, atol=1e-5, rtol=0.005)
    torch.testing.assert_close(mine.grad.double(), exact.grad, atol=1e-5, rtol=0.005)
    assert torch.equal(found[:, 2], qkv[:, 2])


def turned_plainly(qkv, angles):
    turns = torch.polar(torch.ones_like(angles), angles)[:, None, None]
    pairs = torch.complex(*qkv[:, :2].chunk(2, -1)) * turns
    return torch.cat([torch.cat([pairs.real, pairs.imag], -1), qkv[:, 2:]], 1)


def test_batch_mates_do_not_matter():
    torch.manual_seed(0)
    encoder = Encoder(sized("small", vocabulary=1000)).eval().cuda()
    ids, segments = draw_sequences(SIZES, 1000)
    with torch.no_grad():
        together = encoder(pack(ids, segments).to("cuda")).split(SIZES)
        for row, one, segment in zip(together, ids, segments, strict=True):
            torch.testing.assert_close(row, encoder(pack([one], [segment]).to("cuda")), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_compiled_without_graph_breaks(dtype, training):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    config = (
        sized("mini", vocabulary=1000) if training else sized("mini", vocabulary=1000, dropout=0.0, attention_dropout=0.0)
    )
    encoder = Encoder(config).train(training).cuda().to(dtype)
    compiled = torch.compile(encoder, fullgraph=True, dynamic=False)
    sequences = [np.random.default_rng(i).integers(1, 1000, size) for i, size in enumerate(SIZES * 4)]
    shapes = set()
    for _, batch in batches(sequences, shapes=SHAPES):
        batch = batch.map(torch.from_numpy).to("cuda")
        x = compiled(batch)
        assert torch.isfinite(x).all()
        if training:
            x.float().square().mean().backward()
        else:
            torch.testing.assert_close(x, encoder(batch), atol=1e-4 if dtype == torch.float32 else 0.1, rtol=0.02)
        shapes.add(batch.longest)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 8
    assert len(shapes) > 1
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in encoder.parameters())
