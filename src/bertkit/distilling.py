"""Distillation from end to end: a larger model teaches a smaller one, on a store or on a task's files."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit import pipeline, tuning
from bertkit.bundle.bundle import Bundle, load_bundle
from bertkit.bundle.shrink import shrink
from bertkit.data.store import Store
from bertkit.errors import InputError
from bertkit.model.config import MEMBERS
from bertkit.recipes import find_recipe
from bertkit.serve.predictor import load
from bertkit.tasks import TASKS
from bertkit.train.recipe import Recipe

Rows = list[dict[str, Any]]


def distill(
    teacher: Path | str,
    what: Path | str,
    out: Path | str,
    *,
    layers: int | None = None,
    student: Path | str | None = None,
    recipe: str = "distilbert-base",
    **options: Any,
) -> Rows:
    """Trains into the folder `out`. Returns both models side by side: size, and on a task figures and speed."""
    wise, made = load_bundle(teacher), Path(out) / "model"
    depth = layers or max(1, wise.network.encoder.config.layers // 2)
    pupil = load_bundle(student) if student else shrink(wise, depth)
    pupil.provenance = {"source": str(student or f"{teacher}, {depth} of its layers")}
    if wise.task is None:
        _check_store(wise, str(teacher), what)
        given = {name: value for name, value in options.items() if name not in FILES}
        pipeline.pretrain(what, out, recipe=_recipe(recipe, wise, pupil), init=pupil, teacher=wise, **given)
        return [_sized(name) for name in (teacher, made)]
    data = _data(wise, str(teacher), str(what), options)
    tuning.finetune(str(what), pupil, out, teacher=wise, **options)
    return [_measured(name, data.dev, options.get("device", "auto")) for name in (teacher, made)]


FILES = ("train", "dev", "data_dir", "columns", "bad")


def _check_store(teacher: Bundle, name: str, store: Path | str) -> None:
    """A teacher without a task needs a store of its own pieces, and a head that fills them in."""
    if not Path(store).is_dir():
        raise InputError(f"{name} is not fine-tuned, and {store} is no folder; expected a store that bertkit prepare made")
    if teacher.network.masked is None:
        raise InputError(f"{name} has no head that fills in pieces, and no task; a teacher needs one of them")
    if Store(store).tokenizer.vocabulary != teacher.tokenizer.vocabulary:
        raise InputError(f"{store} has other pieces than {name}; prepare it with --tokenizer {name}")


def _recipe(name: str, teacher: Bundle, pupil: Bundle) -> Recipe:
    """A student of BERT is a DistilBERT; others stay what they are. It reads no further than its positions go."""
    family = "distilbert" if teacher.family.name == "bert" else teacher.family.name
    config, known = pupil.network.encoder.config.with_(**MEMBERS[family], pooler=False), find_recipe(name)
    phases = tuple(replace(phase, length=min(phase.length, config.positions)) for phase in known.phases)
    return replace(known, family=family, config=config, phases=phases)


def _data(teacher: Bundle, name: str, what: str, options: dict[str, Any]) -> tuning.Data:
    """The task's files, if they are what the teacher was made for."""
    recipe, data = tuning.read_data(what, **{file: options.get(file) for file in FILES})  # type: ignore[arg-type]
    assert teacher.task is not None
    found = TASKS[recipe.task.task].learn(recipe.task, data.train.records)
    mine, theirs = ((one.task, *one.labels) for one in (teacher.task.settings, found))
    if mine != theirs:
        raise InputError(f"{name} was made for {' '.join(mine)}; {what} is {' '.join(theirs)}: expected the same")
    return data


def _sized(name: Path | str) -> dict[str, Any]:
    return {"model": str(name), "M parameters": load(name, device="cpu").describe()["parameters"]["total"] / 1e6}


def _measured(name: Path | str, records: list[Any], device: str) -> dict[str, Any]:
    """A model of a task on its dev records: figures, size, and records a second."""
    model = load(name, device=device)
    assert model.bundle.task is not None
    begin = time.perf_counter()
    answers = model.answer(records)
    speed = len(records) / (time.perf_counter() - begin)
    return _sized(name) | model.bundle.task.score(records, answers) | {"records/s": speed}
