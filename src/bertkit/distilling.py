"""What distillation adds to training: making a student, checking teacher and store, and comparing both models."""

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
    """Returns the student before training: the given model, or some of the teacher's layers, by default half."""
    if student and layers:
        raise InputError("--layers chooses some of the teacher's layers, and --student names another model; expected one")
    depth = layers or max(1, teacher.network.encoder.config.layers // 2)
    pupil = load_bundle(student) if student else shrink(teacher, depth)
    pupil.provenance = pupil.provenance | {"source": str(student or f"{name}, {depth} of its layers")}
    return pupil


def check_store(teacher: Bundle, name: str, store: Path | str) -> None:
    """Raises unless the store uses the teacher's vocabulary and the teacher has a masked-LM head."""
    if not Path(store).is_dir():
        raise InputError(f"{name} is not fine-tuned and {store} not a folder; expected a store that bertkit prepare made")
    if teacher.network.masked is None:
        raise InputError(f"{name} has no head that fills in pieces, and no task; a teacher needs one of them")
    if Store(store).tokenizer.vocabulary != teacher.tokenizer.vocabulary:
        raise InputError(f"{store} has other pieces than {name}; prepare it with --tokenizer {name}")


def recipe_for(name: str, pupil: Bundle) -> Recipe:
    """Returns the student's recipe: a BERT becomes a DistilBERT, others keep their family; phases fit its positions."""
    family, config, known = pupil.family.name, pupil.network.encoder.config.with_(pooler=False), find_recipe(name)
    if family == "bert":
        family, config = "distilbert", config.with_(**MEMBERS["distilbert"])
    phases = tuple(replace(phase, length=min(phase.length, config.positions)) for phase in known.phases)
    return replace(known, family=family, config=config, phases=phases)


def measured(name: Path | str, records: Sequence[Any] = (), device: str = "cpu") -> dict[str, Any]:
    """Returns a model's size and, if it has a task, its metrics and its speed on the records."""
    model = load(name, device=device)
    told = {"model": str(name), "M parameters": model.runner.parameters()["total"] / 1e6}
    if model.bundle.task is None:
        return told
    begin = time.perf_counter()
    answers = model.answer(records)
    speed = len(records) / (time.perf_counter() - begin)
    return told | model.bundle.task.score(records, answers) | {"records/s": speed}
