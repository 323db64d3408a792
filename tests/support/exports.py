"""Small models of every task and member, and the same as ONNX graphs."""

from pathlib import Path
from typing import Any

import torch

from bertkit.bundle.bundle import Bundle, write_facts
from bertkit.bundle.exported import open_bundle
from bertkit.bundle.members import FAMILIES
from bertkit.bundle.onnx import write_graph
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import SPECIALS, Tokenizer
from support.family import small
from support.records import RECORDS, SENTENCES

WORDS = sorted({word for text in [*SENTENCES, "where did it go ? who is animal even odd"] for word in text.split()})
TOKENIZER = Tokenizer.from_vocabulary([*SPECIALS, *WORDS, *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")], cased=False)
HEADS = {
    "lstm": {"lstm": 16},
    "features": {"features": (-1, -2), "lstm": 16},
    "weighted": {"features": (0, -1), "mix": "weighted"},
}


def bundle_of(member: str = "bert", name: str = "", **changes: Any) -> Bundle:
    """A member of the family with drawn weights; for a task such as "tagging" or "tagging-lstm", or with its first heads."""
    name, _, head = name.partition("-")
    task = None
    if name:
        settings = TaskSettings(task=name, max_length=32, **HEADS.get(head, {}))
        task = TASKS[name](TASKS[name].learn(settings, RECORDS[name]))
    torch.manual_seed(3)
    config = small(member, vocabulary=len(TOKENIZER), **changes)
    network: Any = build_network(config, task) if task else Pretraining(config.with_(pooler=True))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Bundle(network.eval(), TOKENIZER, FAMILIES[member], task=task)


def exported(bundle: Bundle, folder: Path, *, int8: bool = False) -> Bundle:
    """The same as a graph, read back."""
    folder.mkdir()
    write_graph(bundle.network, folder, int8=int8)
    write_facts(bundle, folder)
    return open_bundle(folder)
