import torch
from support.batches import pack

from bertkit.model.config import sized
from bertkit.model.encoder import Encoder
from bertkit.model.norm import Norm, narrow


def test_it_is_layer_norm():
    x, norm = torch.randn(5, 16), Norm(16, eps=1e-12)
    torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (16,), norm.weight, norm.bias, 1e-12))


def test_types_are_kept():
    norm, x = Norm(16), torch.randn(5, 16)
    assert narrow(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.float32
        assert norm(x.bfloat16()).dtype == narrow(x).dtype == torch.bfloat16


def test_values_between_blocks_are_narrow_under_autocast():
    encoder = Encoder(sized("tiny", vocabulary=100)).eval()
    batch = pack([torch.arange(1, 40).numpy(), torch.arange(1, 9).numpy()])
    with torch.no_grad():
        exact = encoder.hidden_states(batch)
        with torch.autocast("cpu", torch.bfloat16):
            states = encoder.hidden_states(batch)
    assert {state.dtype for state in states} == {torch.bfloat16}
    assert (states[-1].float() - exact[-1]).abs().mean() < 0.03
