import pytest

from bertkit.errors import ConfigError
from bertkit.model.config import SIZES, Config, sized


def test_defaults_are_the_paper_s():
    assert Config() == sized("base")
    assert sized("large").heads == 16


@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_heads_of_64(name):
    assert sized(name).head_width == 64


ABSURD = [
    ({"heads": 7}, "width 768 cannot be shared by 7 heads"),
    ({"width": -768}, "width is -768"),
    ({"layers": 0}, "layers is 0"),
    ({"layers": 1_000_000_000}, "expected a whole number from 1 to 512"),
    ({"layers": 2.5}, "layers is 2.5"),
    ({"layers": True}, "layers is True"),
    ({"vocabulary": "many"}, "vocabulary is 'many'"),
    ({"dropout": 1.0}, "dropout is 1.0"),
    ({"dropout": float("nan")}, "dropout is nan"),
    ({"attention_dropout": "0.1"}, "attention_dropout is '0.1'"),
    ({"norm_epsilon": 0}, "norm_epsilon is 0; expected a number between 0 and 1"),
    ({"rotary_base": -1.0}, "rotary_base is -1.0; expected a number between 0 and"),
    ({"local_rotary_base": "x"}, "local_rotary_base is 'x'"),
    ({"activation": "gelu_tahn"}, 'did you mean "gelu_tanh"'),
    ({"activation": None}, "activation is None"),
]


@pytest.mark.parametrize(("changes", "message"), ABSURD)
def test_absurd_values_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Config(**changes)


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"no setting 'layer' \(did you mean \"layers\"\?\)"):
        sized("tiny", layer=3)
    with pytest.raises(ConfigError, match="expected one of tiny"):
        sized("huge")


def test_choices_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match="causal is true with a window or relative places"):
        Config(causal=True, place="relative")
    with pytest.raises(ConfigError, match="with a window of 0; expected a window of 1 at least"):
        Config(global_tokens="none")
