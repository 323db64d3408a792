"""The whole life of a BERT: raw text → vocabulary → pre-training → fine-tuning → answers.

Public names are resolved on first use, so that importing bertkit does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertkit.exporting import export
    from bertkit.model.config import Config, sized
    from bertkit.pipeline import convert, create, distill, evaluate, finetune, learn_vocabulary, predict, prepare, pretrain
    from bertkit.serve.predictor import Model, load
    from bertkit.text.corpus import Corpus
    from bertkit.text.memo import CorpusEncoder
    from bertkit.text.tokenizer import Tokenizer

_HOMES = {
    "Config": "bertkit.model.config",
    "sized": "bertkit.model.config",
    "Corpus": "bertkit.text.corpus",
    "CorpusEncoder": "bertkit.text.memo",
    "Tokenizer": "bertkit.text.tokenizer",
    "Model": "bertkit.serve.predictor",
    "load": "bertkit.serve.predictor",
    "learn_vocabulary": "bertkit.pipeline",
    "prepare": "bertkit.pipeline",
    "pretrain": "bertkit.pipeline",
    "finetune": "bertkit.pipeline",
    "evaluate": "bertkit.pipeline",
    "predict": "bertkit.pipeline",
    "distill": "bertkit.pipeline",
    "create": "bertkit.pipeline",
    "convert": "bertkit.pipeline",
    "export": "bertkit.exporting",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
