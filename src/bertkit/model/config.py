"""The configuration of an encoder: its sizes and a few named choices."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from bertkit.errors import ConfigError, check_choice, did_you_mean

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
CHOICES = dict(activation=ACTIVATIONS, place=("learned", "rotary", "relative"), norm=("post", "pre"))
CHOICES |= dict(masked=("", "gelu"), summary=("tanh", "relu", "gelu"), summary_of=("cls", "mean"))
CHOICES |= dict(global_tokens=("", "none", "first", "question", "options"))
# Larger than any known encoder; a damaged or hostile config could otherwise take all memory.
LIMITS = dict(vocabulary=5_000_000, layers=512, width=65_536, heads=1024, feedforward=262_144)
LIMITS |= dict(positions=1_048_576, segments=1024, embedding=65_536, first_position=1024)
LIMITS |= dict(window=1_048_576, global_every=512, buckets=65_536)
BETWEEN_ZERO_AND = dict(norm_epsilon=1, init_std=1, rotary_base=10**15, local_rotary_base=10**15)
MAY_BE_ZERO = ("segments", "embedding", "first_position", "window", "global_every")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of an encoder; the defaults are BERT-base (Devlin et al., section 3)."""

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
    causal: bool = False  # each token attends only to itself and earlier ones: the paper's left-to-right baseline
    # Settings changed by members of the family.
    embedding: int = 0  # width of the piece embeddings, projected to `width`; 0: the same
    place: str = "learned"  # kind of positions: a learned table, rotary embedding, or relative distances
    first_position: int = 0  # row of the table for position 0
    buckets: int = 256  # relative: number of distance buckets to each side
    rotary_base: float = 160_000.0
    local_rotary_base: float = 10_000.0  # in blocks with a window
    window: int = 0  # tokens that a token attends to on each side; 0: all
    global_every: int = 0  # with a window, blocks 0, n, 2n, … attend to all tokens; 0: none
    global_tokens: str = ""  # with a window: which tokens attend to all, and all to them; "": no global attention
    norm: str = "post"  # after each half of a block, or before it
    gated: bool = False  # the feed-forward's activation is multiplied by a second linear map
    bias: bool = True  # in linear layers and norms
    shared: bool = False  # all layers share one block
    masked: str = ""  # activation of the masked language modelling head; "": that of the blocks
    summary: str = "tanh"  # activation of the pooler
    summary_of: str = "cls"  # input of the pooler: the first token's vector, or the mean of all
    summary_norm: bool = False  # the pooler ends in a norm, and all tasks use it

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            least = 0 if name in MAY_BE_ZERO else 1
            if type(value) is not int or not least <= value <= limit:
                raise ConfigError(f"{name} is {value!r}; expected a whole number from {least} to {limit:,}")
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} cannot be shared by {self.heads} heads; expected heads to divide width")
        for name in ("dropout", "attention_dropout"):
            if not _is_number(rate := getattr(self, name)) or not 0 <= rate < 1:
                raise ConfigError(f"{name} is {rate!r}; expected a number from 0 up to, not including, 1")
        for name, most in BETWEEN_ZERO_AND.items():
            if not _is_number(value := getattr(self, name)) or not 0 < value < most:
                raise ConfigError(f"{name} is {value!r}; expected a number between 0 and {most:,}")
        for name in ("pooler", "causal", "gated", "bias", "shared", "summary_norm"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected true or false")
        for name, known in CHOICES.items():
            check_choice(name, getattr(self, name), known, ConfigError)
        if self.causal and (self.needs_grids or self.window):
            raise ConfigError("causal is true with a window or relative places; expected neither")
        if self.global_tokens and not self.window:
            raise ConfigError(f"global_tokens is {self.global_tokens!r} with a window of 0; expected a window of 1 at least")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def piece_width(self) -> int:
        return self.embedding or self.width

    @property
    def needs_grids(self) -> bool:
        """Whether attention needs grids: no kernel on the packed row has relative positions or global tokens."""
        return self.place == "relative" or self.global_tokens not in ("", "none")

    def with_(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; raises ConfigError for unknown names."""
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                raise ConfigError(f"no setting {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
        return replace(self, **changes)


_ROBERTA: dict[str, Any] = dict(first_position=2, segments=1, masked="gelu")
MEMBERS: dict[str, dict[str, Any]] = {  # how each differs from BERT, by Hugging Face model_type
    "bert": {},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA),
    "distilbert": dict(segments=0, summary="relu"),
    "albert": dict(shared=True, dropout=0.0, attention_dropout=0.0, activation="gelu_tanh"),
    "electra": dict(masked="gelu", summary="gelu"),
    "deberta-v2": dict(place="relative", segments=0, summary="gelu", norm_epsilon=1e-7),
    "longformer": _ROBERTA | dict(global_tokens="none"),
    "modernbert": dict(
        **dict(place="rotary", norm="pre", gated=True, bias=False, segments=0, dropout=0.0, attention_dropout=0.0),
        **dict(masked="gelu", summary="gelu", summary_norm=True, norm_epsilon=1e-5),
    ),
}
SIZES = {  # (layers, width) of the paper's two and the published miniatures; heads are 64 wide, feed-forward is 4 × width
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def sized(name: str, **changes: Any) -> Config:
    """Returns the configuration of a named size, with some fields changed, such as those of MEMBERS."""
    check_choice("size", name, SIZES, ConfigError)
    layers, width = SIZES[name]
    return Config(layers=layers, width=width, heads=width // 64, feedforward=4 * width).with_(**changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
