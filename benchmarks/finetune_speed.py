"""How fast is fine-tuning? bertkit compared with transformers.Trainer: same model, inputs, batch size and schedule.

Trainer gets batches grouped by length and padded to their longest, fused AdamW and, on a GPU, loader workers. On a CPU both
run in fp32 and in bf16. Steady is the second half of the steps; end to end is everything but evaluation, compilation
included. All are scored on dev by the same code, in fp32 on a CPU.
"""

import gc
import json
import tempfile
import time
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from measure import arguments, data, report

from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.data.sets import read_set
from bertkit.model.device import find_device
from bertkit.tasks import TASKS
from bertkit.tasks.answering import answer_records
from bertkit.train.finetuning import rate_for_width, tuned_network, tuning_job
from bertkit.train.fit import fit
from bertkit.tuning import recipe_of

CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "regression": transformers.AutoModelForSequenceClassification,
    "tagging": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
}


def main() -> None:
    options = arguments(
        __doc__,
        set="glue/sst2",
        model="",
        rows=0,
        dev_rows=0,
        epochs=1.0,
        seeds="0",
        device="auto",
        lr=0.0,
        compile=0,
        graphs=1,
        peer_compile=0,
        only="",
        precisions="",
    )
    device = find_device(options.device)
    recipe = replace(recipe_of(options.set), epochs=options.epochs)
    precisions = (options.precisions or ("bf16" if device.type == "cuda" else "fp32,bf16")).split(",")
    recipe = replace(recipe, compile=bool(options.compile), graphs=bool(options.graphs))
    recipe = replace(recipe, row_tokens=32_768 if device.type == "cuda" else 8192)
    train = read_set(options.set, data() / "tasks", "train").records
    train = train[: options.rows] if options.rows else train
    dev = read_set(options.set, data() / "tasks", "dev").records
    dev = dev[: options.dev_rows] if options.dev_rows else dev
    kind = TASKS[recipe.task.task]
    task = kind(kind.learn(recipe.task, train))
    source = load_bundle(options.model)
    if options.lr:
        width = source.network.encoder.config.width
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=options.lr / rate_for_width(width)))
    rows = []
    for seed in map(int, options.seeds.split(",")):
        contenders = {"bertkit": ours, "transformers.Trainer": theirs}
        for precision, name in product(precisions, [name for name in contenders if options.only in name]):
            gc.collect()
            seeded = replace(recipe, task=task.settings, seed=seed, precision=precision)
            found = contenders[name](seeded, task, source, options, train, dev, device)
            rows.append({"seed": seed, "who": f"{name}, {precision}", **found})
            print(rows[-1], flush=True)
    names = list(dict.fromkeys(row["who"] for row in rows))
    for (one, other), speed in product(combinations(names, 2), ("steady", "end to end")):
        means = [np.mean([row[speed] for row in rows if row["who"] == name]) for name in (one, other)]
        print(f"{speed}: {one} over {other}: {means[0] / means[1]:.2f}×")
    report(f"Fine-tuning {options.set}, {len(train):,} records, examples/s on {_name(device)}", rows)


def ours(recipe, task, source, options, train, dev, device):
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "r"
        begin = time.perf_counter()
        network = tuned_network(recipe, task, source.network, train)
        bundle = Bundle(network, source.tokenizer, source.family, task=task)
        job = tuning_job(run, recipe, task, network, source.tokenizer, train, [], device, lambda to: save_bundle(bundle, to))
        state = fit(replace(job, quiet=True))
        wall = time.perf_counter() - begin
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        half = rows[len(rows) // 2]
        steady = (rows[-1]["step"] - half["step"]) * recipe.batch / (rows[-1]["elapsed"] - half["elapsed"])
        examples = state.step * recipe.batch
        tuned = load_bundle(run / "model").network
        return {"steady": steady, "end to end": examples / wall, "s": wall} | score(tuned, task, source, dev, device)


def theirs(recipe, task, source, options, train, dev, device):
    begin = time.perf_counter()
    units = task.units(train, source.tokenizer)
    dataset = [example(one, task) for unit in units for one in unit]
    if not source.network.encoder.config.segments:
        dataset = [{name: value for name, value in one.items() if name != "token_type_ids"} for one in dataset]
    transformers.set_seed(recipe.seed)
    labels = {} if recipe.task.task == "qa" else {"num_labels": task.outputs}
    network = CLASSES[recipe.task.task].from_pretrained(options.model, dtype=torch.float32, **labels)
    width = network.config.hidden_size
    with tempfile.TemporaryDirectory() as scratch:
        steps = -(-len(dataset) // recipe.batch) * recipe.epochs
        settings = transformers.TrainingArguments(
            scratch,
            per_device_train_batch_size=recipe.batch,
            learning_rate=recipe.optimizer.lr * rate_for_width(width),
            num_train_epochs=recipe.epochs,
            weight_decay=recipe.optimizer.weight_decay,
            warmup_steps=int(recipe.schedule.warmup * steps),
            lr_scheduler_type="linear",
            max_grad_norm=recipe.optimizer.clip,
            bf16=recipe.precision == "bf16",
            use_cpu=device.type == "cpu",
            optim="adamw_torch_fused",
            torch_compile=bool(options.peer_compile),
            train_sampling_strategy="group_by_length",
            dataloader_num_workers=4 if device.type == "cuda" else 0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=recipe.seed,
        )
        clock = Clock()
        trainer = transformers.Trainer(network, settings, data_collator=collate, train_dataset=dataset, callbacks=[clock])
        trainer.train()
        wall = time.perf_counter() - begin
        trainer.save_model(scratch)
        source.tokenizer.write_files(Path(scratch))
        tuned = load_bundle(scratch).network
    half = len(clock.times) // 2
    steady = (len(clock.times) - 1 - half) * recipe.batch / (clock.times[-1] - clock.times[half])
    examples = len(clock.times) * recipe.batch
    return {"steady": steady, "end to end": examples / wall, "s": wall} | score(tuned, task, source, dev, device)


class Clock(transformers.TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available() and state.global_step % 50 == 0:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def example(one, task) -> dict:
    found = {"input_ids": one.ids.tolist(), "token_type_ids": one.segments.tolist(), "length": len(one)}
    if task.settings.task == "qa":
        return found | {"start_positions": int(one.targets[0]), "end_positions": int(one.targets[1])}
    if task.settings.task == "tagging":
        labels = np.full(len(one), -100)
        labels[one.places] = one.targets
        return found | {"labels": labels.tolist()}
    return found | {"labels": one.targets.ravel()[0].item()}


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    """Pads the examples to the longest of the batch."""
    longest = max(len(one["input_ids"]) for one in examples)
    names = [name for name in ("input_ids", "token_type_ids") if name in examples[0]]
    grid = {name: torch.zeros(len(examples), longest, dtype=torch.long) for name in (*names, "attention_mask")}
    for row, one in enumerate(examples):
        size = len(one["input_ids"])
        for name in names:
            grid[name][row, :size] = torch.tensor(one[name])
        grid["attention_mask"][row, :size] = 1
    if isinstance(examples[0].get("labels"), list):
        rows = [one["labels"] + [-100] * (longest - len(one["labels"])) for one in examples]
        return grid | {"labels": torch.tensor(rows)}
    rest = [name for name in ("labels", "start_positions", "end_positions") if name in examples[0]]
    return grid | {name: torch.tensor([one[name] for one in examples]) for name in rest}


def score(network, task, source, dev, device) -> dict[str, float]:
    network, cuda = network.to(device).eval(), device.type == "cuda"
    options: dict[str, Any] = dict(precision="bf16" if cuda else "fp32", budget=16_384 if cuda else 4096)
    answers = list(answer_records([network], task, source.tokenizer, dev, device, **options))
    return {f"dev {task.headline}": 100 * task.score(dev, answers)[task.headline]}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    main()
