"""READ THIS FIRST: the stages from raw text to answers, one function each.

- text ─learn_vocabulary→ tokenizer ─prepare→ store ─pretrain→ a model
- a model and a task's files ─finetune→ a fine-tuned model ─evaluate→ metrics (details in tuning.py)
- a model and a file of rows ─predict→ the same rows with answers
- a foreign checkpoint ─convert→ a model ─bertkit.load→ answers
- a model ─export→ an ONNX folder that runs without torch (exporting.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.bundle.families import read_config, write_config
from bertkit.bundle.folder import Bundle
from bertkit.bundle.hub import find_model
from bertkit.bundle.members import FAMILIES, family_of
from bertkit.data import check
from bertkit.data.prepare import prepare_store
from bertkit.data.readers import Given, Named, Where, read_records
from bertkit.data.sets import SETS, read_set
from bertkit.data.store import Store
from bertkit.errors import InputError
from bertkit.model.config import MEMBERS, Config, sized
from bertkit.serve.files import predict_file
from bertkit.serve.predictor import Model, load
from bertkit.text import vocabulary
from bertkit.text.corpus import MAX_LINE, Corpus
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.results import summarize

if TYPE_CHECKING:
    from bertkit.train.recipe import Recipe


def learn_vocabulary(
    corpus: Sequence[Where], size: int, out: Where, *, bad: str = "stop", max_line: int = MAX_LINE, **options: Any
) -> vocabulary.Learned:
    """Learns a vocabulary of `size` pieces from files and folders and saves its tokenizer to `out`. The other options are
    those of `text.vocabulary.learn_vocabulary`."""
    learned = vocabulary.learn_vocabulary(Corpus(corpus, bad=bad, max_line=max_line), size, **options)
    learned.tokenizer.save(out)
    return learned


def prepare(
    corpus: Sequence[Where], tokenizer: Where, out: Where, *, bad: str = "stop", max_line: int = MAX_LINE, **options: Any
) -> Store:
    """Turns a corpus into a token store; called again, it resumes. The other options are those of
    `data.prepare.prepare_store`."""
    pieces = Tokenizer.load(find_model(tokenizer))
    return prepare_store(Corpus(corpus, bad=bad, max_line=max_line), pieces, Path(out), **options)


def pretrain(
    store: Where,
    out: Where,
    *,
    recipe: str | Recipe = "bert-base",
    init: Where | Bundle | None = None,
    settings: Sequence[str] = (),
    budget: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    fork: bool = False,
    shard: bool = False,
    teacher: Bundle | None = None,
    quiet: bool = False,
) -> Path:
    """Pre-trains on a store into the folder `out`; called again, it resumes. Returns the artifact's folder."""
    from bertkit.model.device import find_device, tokens_at_once
    from bertkit.recipes import find_recipe
    from bertkit.train.distributed import join_world
    from bertkit.train.fit import fit
    from bertkit.train.pretraining import pretraining_job
    from bertkit.train.recipe import change, with_rows
    from bertkit.train.report import write_report
    from bertkit.train.run import parse_budget, rows_of

    opened, run = Store(store), Path(out)
    named = find_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = change(named, list(settings))
    _check_changes(named, chosen, goes_on=init is not None, taught=teacher is not None)
    chosen = replace(chosen, budget=parse_budget(budget)) if budget else chosen
    bundle, network, chosen = begin_with(chosen, opened, init, teacher)
    with join_world(find_device(device)) as (world, where):
        most = min(map(int, world.gather(str(tokens_at_once(where, chosen.precision, chosen.config)))))
        rows = chosen.row_tokens or rows_of(run, chosen.batch_tokens, world.size)
        chosen = with_rows(replace(chosen, row_tokens=rows), most, world.size)
        if teacher is not None:
            teacher.network.to(where)
        ahead = (4 if where.type == "cuda" else 0) if workers is None else workers
        job, samples = pretraining_job(run, chosen, opened, network, where, world, bundle.save, ahead)
        begun = {"store": opened.manifest["settings"], "init": bundle.provenance["init"]}
        fit(replace(job, begun=begun, fork=fork, shard=shard and world.size > 1, quiet=quiet))
        if world.leads:
            write_report(run, samples=samples())
    return run / "model"


def finetune(what: str, model: Where | Bundle | Model, out: Where, **options: Any) -> dict[str, Any]:
    """Fine-tunes a model for a task or on a named dataset; the options are those of `tuning.finetune`."""
    from bertkit import tuning

    return tuning.finetune(what, model.bundle if isinstance(model, Model) else model, out, **options)


def distill(
    teacher: Where,
    what: Where,
    out: Where,
    *,
    layers: int | None = None,
    student: Where | None = None,
    recipe: str = "distilbert-base",
    **options: Any,
) -> list[dict[str, Any]]:
    """Trains a smaller student of a larger teacher, on a store or a task, into the folder `out`. The other options are those
    of `pretrain` or `finetune`. Returns a row for each model: its size, and on a task its metrics and speed."""
    from bertkit import distilling, tuning
    from bertkit.bundle.bundle import load_bundle

    wise = load_bundle(teacher)
    pupil = distilling.begin_student(wise, str(teacher), layers, student)
    made, files = Path(out) / "model", {name: options.get(name) for name in tuning.FILES}
    if wise.task is None:
        distilling.check_store(wise, str(teacher), what)
        given = {name: value for name, value in options.items() if name not in files}
        pretrain(what, out, recipe=distilling.recipe_for(recipe, pupil), init=pupil, teacher=wise, **given)
        return [distilling.measured(name) for name in (teacher, made)]
    finetune(str(what), pupil, out, teacher=wise, **options)
    _, data = tuning.read_data(str(what), **files)  # type: ignore[arg-type]
    return [distilling.measured(name, data.dev.records, options.get("device", "auto")) for name in (teacher, made)]


def evaluate(
    model: Where, data: Given, *, split: str = "dev", columns: Named = None, bad: str = "stop", device: str = "auto"
) -> dict[str, Any]:
    """Returns a fine-tuned model's metrics on a file or rows of its task, or on a named dataset: "glue/mrpc=FOLDER"."""
    loaded = load(model, device=device)
    task = loaded.bundle.task
    if task is None:
        raise InputError(f"{model} is not fine-tuned; expected a model that bertkit finetune made")
    name, _, folder = str(data).partition("=") if isinstance(data, Path | str) else ("", "", "")
    kind = task.settings.task
    if name in SETS:
        if SETS[name].task not in (kind, "regression" if kind == "similarity" else kind):
            raise InputError(f"{name} is a set for {SETS[name].task}, and {model} a model for {kind}; expected the same")
        table = read_set(name, folder or ".", split, bad)
    else:
        table = read_records(data, kind, columns, classes=task.settings.labels, bad=bad)
    if kind != "similarity" and any(getattr(one, "label", getattr(one, "labels", ())) is None for one in table.records):
        raise InputError(f"{table.path} has rows without labels; expected a file that has them all")
    counts = {"rows": len(table.records), "skipped": table.skipped}
    return summarize(task, table.records, loaded.answer(table.records)) | counts


def predict(model: Where, data: Where, out: Where, **options: Any) -> dict[str, Any]:
    """Writes an answer for every row of a file, in the same format; the options are those of `serve.files.predict_file`."""
    return predict_file(model, data, out, **options)


def check_data(
    files: Sequence[Where], task: str, model: str | None, *, columns: Named = None, max_length: int = 128
) -> dict[str, Any]:
    """Reports on a task's files before training. Lengths are in pieces of the model's tokenizer, or without one in words."""
    names = [Path(file).name for file in files]
    names = names if len(set(names)) == len(names) else [f"{number}: {file}" for number, file in enumerate(files, 1)]
    tables = {name: read_records(file, task, columns, bad="skip") for name, file in zip(names, files, strict=True)}
    return check.check_data(tables, Tokenizer.load(find_model(model)) if model else None, max_length)


def create(size: str, tokenizer: Tokenizer, *, family: str = "bert", seed: int = 0, **changes: Any) -> Model:
    """Returns a new model of the family in a named size (tiny … large), its random weights determined by the seed."""
    import torch

    from bertkit.tasks.pretraining import Pretraining

    member = family_of({"model_type": family})
    config = _fitting(sized(size, **MEMBERS[family] | changes), tokenizer).with_(**changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pretraining(config)
    return Model(Bundle(network, tokenizer, member, {"source": f"random weights, seed {seed}"}), device="cpu")


def convert(source: Where, out: Where, *, positions: int = 0, window: int = 256, half: bool = False) -> Model:
    """Reads a Hugging Face or Google checkpoint and writes it as an artifact: with `positions` as a Longformer, with `half`
    in fp16."""
    from bertkit.bundle.bundle import load_bundle, save_bundle
    from bertkit.bundle.changes import lengthen

    bundle = load_bundle(source)
    bundle = lengthen(bundle, positions, window) if positions else bundle
    save_bundle(bundle, out, half=half)
    return Model(bundle, device="cpu")


def begin_with(
    recipe: Recipe, store: Store, init: Where | Bundle | None, teacher: Bundle | None
) -> tuple[Bundle, Any, Recipe]:
    """Returns the bundle to keep (new, or from `init`), the network to train, and the recipe with its final config."""
    import torch

    from bertkit.bundle.bundle import load_bundle
    from bertkit.bundle.changes import extend_vocabulary
    from bertkit.tasks.distillation import Distilled
    from bertkit.tasks.objectives import JUDGED, OBJECTIVES
    from bertkit.train.run import differences

    found = init if init is None or isinstance(init, Bundle) else load_bundle(init)
    if found is None or teacher is not None:
        family, shape = FAMILIES[recipe.family], recipe.config if found else _fitting(recipe.config, store.tokenizer)
    else:
        family, shape = found.family, found.network.encoder.config.with_(**_dropouts(recipe))
    paired = recipe.pairs != "none"
    config = shape.with_(vocabulary=len(store.tokenizer), pooler=paired)
    read = read_config(write_config(config, family), family).with_(pooler=config.pooler)
    if lost := differences(vars(config), vars(read)):
        raise InputError(f"a {family.name} would be read back otherwise: {'; '.join(lost)}; set these so, or another family")
    told: Any = dict(generator=recipe.generator) if recipe.objective in JUDGED else dict(next_sentence=paired)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network: Any = OBJECTIVES[recipe.objective](config, **told)
    if found is not None:
        extend_vocabulary(network.kept, store.tokenizer, found)
    if teacher is not None:
        network = Distilled(network, teacher.network)
    begun = init.provenance["source"] if isinstance(init, Bundle) else str(init or "")
    made = {"source": f"bertkit pretrain, recipe {recipe.name}", "objective": recipe.objective}
    provenance = made | {"store": store.manifest["settings"], "init": begun}
    recipe = replace(recipe, config=config, family=family.name)
    return Bundle(network.kept, store.tokenizer, family, provenance), network, recipe


def _fitting(config: Config, tokenizer: Tokenizer) -> Config:
    """Returns a new model's configuration. RoBERTa's kind counts positions from behind the padding's id: transformers counts
    none for pieces with that id."""
    return config.with_(vocabulary=len(tokenizer), first_position=config.first_position and tokenizer.pad + 1)


def _check_changes(named: Recipe, chosen: Recipe, *, goes_on: bool, taught: bool) -> None:
    """Raises where a setting contradicts the store, the initial model or the teacher."""
    if goes_on and chosen.config.with_(**_dropouts(named)) != named.config:
        raise InputError("--init and students keep the model's shape; expected no settings of config but dropout")
    settled = {name: getattr(named.config, name) for name in ("vocabulary", "first_position", "pooler")}
    if chosen.config.with_(**settled) != chosen.config:
        raise InputError("vocabulary and first_position follow from the store, pooler from pairs; expected none of them")
    if taught and (told := (chosen.objective, chosen.pairs)) != ("masked", "none"):
        raise InputError(f"a teacher fills in pieces; expected objective=masked, pairs=none, found {' and '.join(told)}")


def _dropouts(recipe: Recipe) -> dict[str, float]:
    """The only settings of the configuration that a recipe may change in an initial model."""
    return {name: getattr(recipe.config, name) for name in ("dropout", "attention_dropout")}
