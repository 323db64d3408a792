"""The whole life of a BERT: raw text → vocabulary → pre-training → fine-tuning → answers.

Public names are resolved on first use, so that importing bertkit does not import torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # idle torch threads soon sleep, so that other processes get the CPU

if TYPE_CHECKING:
    from bertkit.exporting import export
    from bertkit.model.config import Config, sized
    from bertkit.pipeline import convert, create, distill, evaluate, finetune, learn_vocabulary, predict, prepare, pretrain
    from bertkit.serve.predictor import Model, load
    from bertkit.text.corpus import Corpus
    from bertkit.text.memo import CorpusEncoder
    from bertkit.text.tokenizer import Tokenizer

_HOMES = {
    "bertkit.exporting": "export",
    "bertkit.model.config": "Config sized",
    "bertkit.pipeline": "convert create distill evaluate finetune learn_vocabulary predict prepare pretrain",
    "bertkit.serve.predictor": "Model load",
    "bertkit.text.corpus": "Corpus",
    "bertkit.text.memo": "CorpusEncoder",
    "bertkit.text.tokenizer": "Tokenizer",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
