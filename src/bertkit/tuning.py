"""Fine-tuning from end to end: files in; one run, a grid search or an ensemble; a calibrated artifact and a report out."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertkit.atomic import is_empty, new_folder, write_text
from bertkit.bundle.bundle import Bundle, load_bundle
from bertkit.bundle.exported import ExportedBundle
from bertkit.data.readers import Given, Named, Table, Where, read_records
from bertkit.data.records import fingerprint, part
from bertkit.data.sets import SETS, find_file, read_set, write_answers, write_choices, write_submission, write_tags
from bertkit.errors import ArtifactError, DataError, InputError, TrainingError, check_choice
from bertkit.model.device import PROCESSOR_ROW, find_device, quick_precision
from bertkit.tasks import TASKS
from bertkit.tasks.answering import answer_records
from bertkit.tasks.distillation import DistilledTask
from bertkit.tasks.objectives import JUDGED
from bertkit.tasks.task import TaskSettings
from bertkit.train.finetuning import check_fits, tuned_network, tuning_job
from bertkit.train.fit import fit
from bertkit.train.recipe import Tuning, change
from bertkit.train.results import calibrate, summarize
from bertkit.train.task_report import write_task_report

File = Given | None
Place = Where | None
GRID = "batch=16,32 lr=5e-5,3e-5,2e-5 epochs=2,3,4"  # the paper's (appendix A.3)
# After replaced-token detection, ELECTRA's settings work best: higher rates for upper blocks (Clark et al., 2020).
ELECTRA, ELECTRA_GRID = ("lr=1e-4", "layer_decay=0.8"), "batch=16,32 lr=1.5e-4,1e-4,5e-5 epochs=2,3,4"


@dataclass(frozen=True)
class Data:
    """The training and evaluation data of a task."""

    name: str  # of the task or the named dataset
    train: Table
    dev: Table

    @cached_property
    def about(self) -> dict[str, dict[str, Any]]:
        """Files, rows and fingerprints, for the artifact and the report."""
        return {
            split: dict(file=str(one.path), rows=len(one.records), skipped=one.skipped, fingerprint=fingerprint(one.records))
            for split, one in (("train", self.train), ("dev", self.dev))
        }


@dataclass(frozen=True)
class Plan:
    """A recipe to try and its run folder; once trained, also its score on dev and its training time."""

    recipe: Tuning
    run: Path
    point: dict[str, Any] = field(default_factory=dict)  # its values in the grid
    score: float = float("-inf")
    seconds: float = 0.0


def finetune(
    what: str,
    model: Path | str | Bundle,
    out: Path | str,
    *,
    teacher: Bundle | None = None,
    train: File = None,
    dev: File = None,
    data_dir: Place = None,
    columns: Named = None,
    settings: Sequence[str] = (),
    search: str | None = None,
    restarts: int = 1,
    ensemble: int = 1,
    bad: str | None = None,
    device: str = "auto",
    fork: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Fine-tunes into the folder `out`; the artifact is `out/model`. Returns the content of results.json."""
    recipe, data = read_data(what, train, dev, data_dir, columns, bad)
    source = model if isinstance(model, Bundle) else load_bundle(model)
    if isinstance(source, ExportedBundle):
        raise ArtifactError("this model was exported, which is for answers alone; expected the model it was made of")
    name = source.provenance["source"] if isinstance(model, Bundle) else str(model)
    where, run = find_device(device), Path(out)
    recipe = _taught(recipe, teacher, source) if teacher else recipe
    usual, grid = (ELECTRA, ELECTRA_GRID) if learned_as_electra(source) else ((), GRID)
    recipe = _settled(recipe, data.train.records, where, [*usual, *settings], teacher is not None)
    kind = TASKS[recipe.task.task]
    if what not in SETS:
        kind(recipe.task).units(data.dev.records, source.tokenizer)  # raises on labels that are not in the training data
    tuner = Tuner(recipe, data, source, name, where, teacher, fork, quiet)
    planned = _plans(recipe, run, grid if search == "paper" else search, restarts, ensemble)
    for plan in planned:
        check_fits(plan.recipe, kind(plan.recipe.task), source.network.encoder)
    _check_out(run, several=len(planned) > 1)
    plans = [tuner.tune(plan) for plan in planned]
    ranked = sorted(plans, key=lambda plan: -plan.score)
    best = _take(ranked[0], run)
    tried = [_tried(plan) for plan in plans] if len(plans) > 1 else None
    results = tuner.finish(best, run) | {"search": tried} | _effort(ranked[0])
    members = [best, *(load_bundle(plan.run / "model") for plan in ranked[1:ensemble])]
    if ensemble > 1:
        together = kind(recipe.task).score(data.dev.records, tuner.answer(members, data.dev.records))
        results["ensemble"] = {"members": [str(plan.run) for plan in ranked[:ensemble]], "metrics": together}
    write_text(run / "results.json", json.dumps(results, indent=2, ensure_ascii=False, default=float) + "\n")
    write_task_report(run)
    if what in SETS and data_dir is not None:
        tuner.hand_in(members, data_dir, run / "predictions")
    return results


@dataclass(frozen=True)
class Tuner:
    """What all runs of one call to `finetune` share."""

    recipe: Tuning
    data: Data
    source: Bundle
    model: str  # the source's name
    device: torch.device
    teacher: Bundle | None
    fork: bool
    quiet: bool

    def tune(self, plan: Plan) -> Plan:
        """Trains one plan to its end, resuming if it was begun."""
        recipe, data, source = plan.recipe, self.data, self.source
        train, dev = data.train.records, data.dev.records
        task = TASKS[recipe.task.task](recipe.task)
        network = tuned_network(recipe, task, source.network, train, source.task)
        told = {"source": f"bertkit finetune {data.name}", "model": self.model, "train": data.about["train"]["fingerprint"]}
        before = {name: value for name, value in source.provenance.items() if name == "objective"}
        bundle = Bundle(network, source.tokenizer, source.family, before | told, task)
        learner = DistilledTask(network, self.teacher.network.to(self.device)) if self.teacher else network
        job = tuning_job(plan.run, recipe, task, learner, source.tokenizer, train, dev, self.device, bundle.save)
        state = fit(replace(job, begun=job.begun | {"model": self.model}, fork=self.fork, quiet=self.quiet))
        known: Any = replace(job.recipe, optimizer=recipe.optimizer)  # the learning rate as given, not scaled to the width
        return replace(plan, recipe=known, score=state.best, seconds=state.elapsed)

    def answer(self, members: list[Bundle], records: Sequence[Any]) -> list[Any]:
        """Returns the answers of one model, or of several as an ensemble, with the first one's settings."""
        networks = [member.network.to(self.device).eval() for member in members]
        how: dict[str, Any] = dict(precision=self.recipe.precision, budget=self.recipe.row_tokens // 2)
        assert members[0].task is not None
        return list(answer_records(networks, members[0].task, members[0].tokenizer, records, self.device, **how))

    def finish(self, bundle: Bundle, run: Path) -> dict[str, Any]:
        """Calibrates the artifact on dev, saves it, and returns its results."""
        dev, answers = self.data.dev.records, self.answer([bundle], self.data.dev.records)
        assert bundle.task is not None
        settings, fitted = calibrate(bundle.task, dev, answers)
        if settings != bundle.task.settings:
            bundle.task = type(bundle.task)(settings)
            bundle.save(run / "model")
            answers = self.answer([bundle], dev)
        found, name = summarize(bundle.task, dev, answers), self.data.name
        named = {"task": settings.task, "set": name if name in SETS else None, "model": self.model}
        return {**named, **found, **fitted, "data": self.data.about}

    def hand_in(self, members: list[Bundle], data_dir: Path | str, folder: Path) -> None:
        """Writes official prediction files for the splits that exist: GLUE's test sets; of other datasets, dev too."""
        name, chosen = self.data.name, SETS[self.data.name]
        also_dev = chosen.task in ("qa", "tagging", "choice")
        splits = [split for split in chosen.files if split not in ("train", "gold")] if also_dev else chosen.handed_in
        for split in splits:
            try:
                find_file(name, data_dir, split)
            except DataError:
                continue
            records = read_set(name, data_dir, split).records
            _write_official(folder, name, split, records, self.answer(members, records))


FILES = ("train", "dev", "data_dir", "columns", "bad")


def read_data(what: str, train: File, dev: File, data_dir: Place, columns: Named, bad: str | None) -> tuple[Tuning, Data]:
    """Returns the recipe and records of a named dataset, or of a task with the user's own files."""
    if what in SETS:
        if data_dir is None or train or dev or any(columns.values() if isinstance(columns, Mapping) else [columns]):
            raise InputError(f"{what} needs --data-dir, the folder that holds its files, and no files or columns beside it")
        table, held = read_set(what, data_dir, "train", bad), read_set(what, data_dir, "dev", bad)
        return recipe_of(what), Data(what, table, held)
    check_choice("task or set", what, [*TASKS, *SETS])
    if train is None or data_dir is not None:
        raise InputError(f"{what} needs --train, a file to learn from, and no --data-dir, which is for named sets")
    recipe = Tuning(task=TaskSettings(task=what, max_length=384 if what == "qa" else 128))
    table = read_records(train, what, columns, bad=bad or "stop")
    if dev is None:
        held_out = _hold_out(table)
        if not held_out or not table.records:
            raise DataError("too few records to hold a tenth of them out; give --dev", table.path)
        return recipe, Data(what, table, Table(Path("a tenth of the training file, by hash"), what, records=held_out))
    classes = sorted({str(record.label) for record in table.records}) if what == "classification" else ()
    return recipe, Data(what, table, read_records(dev, what, columns, classes=classes, bad=bad or "stop"))


def _hold_out(table: Table) -> list[Any]:
    """Moves a tenth of the records out of the table, except those with a label that fewer than two remaining ones have."""
    held, kept = ([record for record in table.records if (part(record, 10) == 0) == out] for out in (True, False))
    counts = Counter(label for record in kept for label in _classes(record))
    known = {label for label, count in counts.items() if count > 1}
    table.records = kept + [record for record in held if not _classes(record) <= known]
    return [record for record in held if _classes(record) <= known]


def _classes(record: Any) -> set[str]:
    label = getattr(record, "labels", None) or getattr(record, "label", None)
    return {one for one in (label if isinstance(label, tuple) else (label,)) if isinstance(one, str)}


def recipe_of(name: str) -> Tuning:
    """The paper's settings for a named dataset."""
    chosen = SETS[name]
    task = TaskSettings(task=chosen.task, labels=chosen.labels, max_length=chosen.max_length, metrics=chosen.metrics)
    base = Tuning(name=name, task=replace(task, context=chosen.task == "tagging"), epochs=chosen.epochs, batch=chosen.batch)
    return replace(base, optimizer=replace(base.optimizer, lr=chosen.learning_rate))


def learned_as_electra(source: Bundle) -> bool:
    """Whether a model was pre-trained with replaced-token detection."""
    return source.family.name == "electra" or source.provenance.get("objective") in JUDGED


def _taught(recipe: Tuning, teacher: Bundle, student: Bundle) -> Tuning:
    """Returns the recipe for a student: the teacher's task settings, so both read the same inputs and order labels alike."""
    assert teacher.task is not None
    theirs, kind = teacher.task.settings, recipe.task.task
    if theirs.task != kind:
        raise InputError(f"the teacher was made for {theirs.task}, and this is {kind}; expected the same")
    if student.tokenizer.vocabulary != teacher.tokenizer.vocabulary:
        raise InputError("the student has other pieces than its teacher; expected a model with the same vocabulary")
    widths = [one.network.encoder.config.width for one in (student, teacher)]
    if kind == "similarity" and widths[0] != widths[1]:
        raise InputError(f"the student's vectors have {widths[0]} numbers, its teacher's {widths[1]}; expected as many")
    task = replace(theirs, threshold=None, temperature=1.0, features=(), lstm=0)  # the student's own
    return replace(recipe, task=replace(task, metrics=recipe.task.metrics or theirs.metrics))


def _settled(recipe: Tuning, records: Sequence[Any], device: torch.device, settings: list[str], taught: bool) -> Tuning:
    """Completes the recipe: first from the device, then the user's settings, then the records."""
    rows = recipe.row_tokens if device.type == "cuda" else min(recipe.row_tokens, PROCESSOR_ROW)
    found = change(replace(recipe, precision=quick_precision(device), row_tokens=rows), settings)
    fixed = ("task", "labels", "objective", "center", "scale") if taught else ("task",)
    known: dict[str, Any] = {name: getattr(recipe.task, name) for name in fixed}  # whatever the records say
    for name, value in known.items():
        if (told := getattr(found.task, name)) != value:
            raise InputError(f"{name}: {value} is settled; expected no setting that makes it {told}")
    return replace(found, task=replace(TASKS[found.task.task].learn(found.task, records), **known))


def _plans(recipe: Tuning, run: Path, search: str | None, restarts: int, ensemble: int) -> list[Plan]:
    """Returns one plan for each point of the grid and each seed."""
    if min(restarts, ensemble) < 1:
        raise InputError(f"{restarts} restarts, {ensemble} models; expected 1 at least")
    tried, grid, seeds = list[Plan](), parse_grid(search) if search else {}, max(restarts, ensemble)
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        changed = change(recipe, [f"{name}={value}" for name, value in point.items()])
        tried += [Plan(replace(changed, seed=changed.seed + seed), run, point) for seed in range(seeds)]
    if len(tried) == 1:
        return tried
    return [replace(plan, run=run / "runs" / f"{number:03d}") for number, plan in enumerate(tried)]


def _check_out(run: Path, several: bool) -> None:
    """Raises if the folder is not empty and holds one run where several are planned, or the reverse."""
    if not is_empty(run) and (run / "runs").is_dir() != several:
        found = "holds several runs" if not several else "is not empty and holds no search"
        raise TrainingError(f"{run} {found}; give another --out")


def parse_grid(text: str) -> dict[str, list[str]]:
    """Returns the values to try for each setting, from text such as "lr=2e-5,5e-5 batch=16,32"."""
    parts = [word.partition("=") for word in text.split()]
    if bad := [name for name, equals, values in parts if not (equals and values)]:
        raise InputError(f'--search has {bad[0]!r}; expected "paper", or such as "lr=2e-5,5e-5 batch=16,32"')
    return {name: values.split(",") for name, _, values in parts}


def _take(plan: Plan, run: Path) -> Bundle:
    """Copies the best plan's artifact and metrics into the run's folder and returns the artifact."""
    if plan.run != run:
        with new_folder(run / "model", marker="bertkit.json") as aside:
            shutil.copytree(plan.run / "model", aside, dirs_exist_ok=True)
        shutil.copy(plan.run / "metrics.jsonl", run / "metrics.jsonl")
    settings = plan.recipe.task  # as trained: a resumed run is calibrated again
    return replace(load_bundle(run / "model"), task=TASKS[settings.task](settings))


def _write_official(folder: Path, name: str, split: str, records: list[Any], answers: list[Any]) -> None:
    kind = SETS[name].task
    if kind == "qa":
        write_answers(folder / f"{split}.json", records, [answer.text for answer in answers])
        write_answers(folder / f"{split}-null.json", records, [answer.null_margin for answer in answers])
    elif kind == "tagging":
        write_tags(folder / f"{split}.txt", records, [answer.labels for answer in answers])
    elif kind == "choice":
        write_choices(folder / f"{split}.csv", records, [answer.option for answer in answers])
    else:
        write_submission(folder, name, split, records, [getattr(answer, "label", answer) for answer in answers])


def _effort(plan: Plan) -> dict[str, Any]:
    speed = plan.recipe.steps * plan.recipe.batch / max(1e-9, plan.seconds)
    return {"settings": asdict(plan.recipe), "seconds": plan.seconds, "examples_per_second": speed}


def _tried(plan: Plan) -> dict[str, Any]:
    usual = {name: getattr(plan.recipe, name) for name in ("batch", "epochs", "seed")}
    return plan.point | {"lr": plan.recipe.optimizer.lr, **usual, "score": plan.score}
