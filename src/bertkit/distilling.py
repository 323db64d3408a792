"""What distillation adds to training: a student of a teacher, what can be taught, and both side by side."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.bundle.bundle import Bundle, load_bundle
from bertkit.bundle.changes import shrink
from bertkit.data.store import Store
from bertkit.errors import InputError
from bertkit.model.config import MEMBERS
from bertkit.recipes import find_recipe
from bertkit.serve.predictor import load
from bertkit.train.recipe import Recipe


def begin_student(teacher: Bundle, name: str, layers: int | None, student: Path | str | None) -> Bundle:
    """The student as it begins: a model of its own, or some of the teacher's layers, half of them unless told."""
    depth = layers or max(1, teacher.network.encoder.config.layers // 2)
    pupil = load_bundle(student) if student else shrink(teacher, depth)
    pupil.provenance = pupil.provenance | {"source": str(student or f"{name}, {depth} of its layers")}
    return pupil


def check_store(teacher: Bundle, name: str, store: Path | str) -> None:
    """A teacher without a task needs a store of its own pieces, and a head that fills them in."""
    if not Path(store).is_dir():
        raise InputError(f"{name} is not fine-tuned, and {store} is no folder; expected a store that bertkit prepare made")
    if teacher.network.masked is None:
        raise InputError(f"{name} has no head that fills in pieces, and no task; a teacher needs one of them")
    if Store(store).tokenizer.vocabulary != teacher.tokenizer.vocabulary:
        raise InputError(f"{store} has other pieces than {name}; prepare it with --tokenizer {name}")


def recipe_for(name: str, pupil: Bundle) -> Recipe:
    """A student of BERT's kind is a DistilBERT; others stay what they are. It reads no further than its positions go."""
    family = "distilbert" if pupil.family.name == "bert" else pupil.family.name
    config, known = pupil.network.encoder.config.with_(**MEMBERS[family], pooler=False), find_recipe(name)
    phases = tuple(replace(phase, length=min(phase.length, config.positions)) for phase in known.phases)
    return replace(known, family=family, config=config, phases=phases)


def measured(name: Path | str, records: Sequence[Any] = (), device: str = "cpu") -> dict[str, Any]:
    """A model's size, and on dev records of its task figures and records a second."""
    model = load(name, device=device)
    told = {"model": str(name), "M parameters": model.runner.parameters()["total"] / 1e6}
    if model.bundle.task is None:
        return told
    begin = time.perf_counter()
    answers = model.answer(records)
    speed = len(records) / (time.perf_counter() - begin)
    return told | model.bundle.task.score(records, answers) | {"records/s": speed}
