"""What an encoder is: its sizes and its few named choices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from bertkit.errors import ConfigError, did_you_mean

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
# Beyond these nobody has built an encoder; a damaged or hostile config would take all memory.
LIMITS = dict(vocabulary=5_000_000, layers=512, width=65_536, heads=1024, feedforward=262_144)
LIMITS |= dict(positions=1_048_576, segments=1024)


@dataclass(frozen=True, kw_only=True)
class Config:
    """BERT-base, unless told otherwise (Devlin et al., section 3)."""

    vocabulary: int = 30_522
    layers: int = 12
    width: int = 768
    heads: int = 12
    feedforward: int = 3072
    positions: int = 512
    segments: int = 2
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_epsilon: float = 1e-12
    init_std: float = 0.02
    pooler: bool = True
    causal: bool = False  # each token looks only at those before it: the paper's left-to-right baseline

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 to {limit:,}")
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} cannot be shared by {self.heads} heads; expected heads to divide width")
        for name in ("dropout", "attention_dropout"):
            if not _is_number(rate := getattr(self, name)) or not 0 <= rate < 1:
                raise ConfigError(f"{name} is {rate!r}; expected a number from 0 up to, not including, 1")
        for name in ("norm_epsilon", "init_std"):
            if not _is_number(value := getattr(self, name)) or not 0 < value < 1:
                raise ConfigError(f"{name} is {value!r}; expected a number between 0 and 1")
        for name in ("pooler", "causal"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected true or false")
        if self.activation not in ACTIVATIONS:
            hint = did_you_mean(str(self.activation), ACTIVATIONS)
            raise ConfigError(f"activation is {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}{hint}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def with_(self, **changes: Any) -> Config:
        """A copy with some fields changed; unknown names are refused."""
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                raise ConfigError(f"no setting {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
        return replace(self, **changes)


SIZES = {  # the paper's two and the published miniatures: layers, width; heads are 64 wide, feed-forward is 4 × width
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def sized(name: str, **changes: Any) -> Config:
    """The configuration of a named size, with some fields changed."""
    if name not in SIZES:
        raise ConfigError(f"no size {name!r}{did_you_mean(name, SIZES)}; there are {', '.join(SIZES)}")
    layers, width = SIZES[name]
    return Config(layers=layers, width=width, heads=width // 64, feedforward=4 * width).with_(**changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
