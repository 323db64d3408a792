import torch

from bertkit.model.dropout import Dropout, hashed_dropout


def test_the_rate_is_met_and_the_rest_scaled():
    torch.manual_seed(0)
    x = torch.ones(1000, 768)
    for rate in (0.1, 0.5):
        y = hashed_dropout(x, rate)
        assert abs((y == 0).float().mean() - rate) < 0.002
        assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - rate)))
        assert abs(y.mean() - 1) < 0.005


def test_drops_are_independent_of_each_other_and_of_the_place():
    torch.manual_seed(0)
    drops = torch.stack([hashed_dropout(torch.ones(512, 256), 0.1) == 0 for _ in range(50)]).float()
    assert abs(drops.mean(0).std() - (0.1 * 0.9 / 50) ** 0.5) < 0.003
    rows, columns = drops.mean((0, 2)), drops.mean((0, 1))
    assert rows.std() < 0.004
    assert columns.std() < 0.003
    flat = drops.flatten(1) - 0.1
    for shift in (1, 2, 255, 256, 257):
        assert abs((flat[:, shift:] * flat[:, :-shift]).mean()) < 2e-4
    assert abs((flat[1:] * flat[:-1]).mean()) < 2e-4


def test_the_same_seed_drops_the_same():
    x = torch.randn(64, 32)
    torch.manual_seed(5)
    first = hashed_dropout(x, 0.3)
    torch.manual_seed(5)
    assert torch.equal(first, hashed_dropout(x, 0.3))
    assert not torch.equal(first, hashed_dropout(x, 0.3))


def test_gradients_pass_where_values_do():
    x = torch.randn(64, 32, requires_grad=True)
    y = hashed_dropout(x, 0.3)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)


def test_nothing_is_dropped_outside_training():
    layer, x = Dropout(0.5), torch.randn(4, 4)
    assert torch.equal(layer.eval()(x), x)
    assert not torch.equal(layer.train()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
