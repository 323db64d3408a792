"""`bertkit demo`: what the packaged model can do, and what its pre-training is worth."""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import bertkit

ASKED = (
    "The capital of France is [MASK].",
    "She went to the library to read a [MASK].",
    "Shakespeare wrote many [MASK].",
    "The children went to [MASK] by bus.",
)
JUDGED = "He kept the anchor and the old boat."
TOPICS = {
    "music": "violin orchestra melody singer piano choir symphony guitar concert drum flute opera",
    "food": "bread soup cheese butter kitchen cake meat pepper dinner salad rice sugar",
    "sea": "ship sailor harbour anchor captain wave fisherman sail voyage boat island shore",
    "law": "judge court lawyer verdict jury prison trial witness crime sentence attorney evidence",
    "medicine": "doctor hospital nurse fever patient surgery disease vaccine pain drug surgeon illness",
    "war": "soldier battle army cannon regiment enemy general siege rifle troops defeat invasion",
    "school": "teacher pupil lesson classroom student exam textbook homework university grammar professor lecture",
    "sport": "goal stadium league coach player championship ball tournament match team referee athlete",
}
FRAMES = (
    "They talked all evening about the {} and the {}.",
    "He remembered the {} and the {} for the rest of his life.",
    "A {} and a {} were mentioned in the letter.",
    "The story began with a {} and ended with a {}.",
)


def run_demo(folder: Path | None, *, epochs: int = 10, seed: int = 0) -> None:
    """Fills in masks, then fine-tunes with and without pre-training. The files are kept in `folder`, if given."""
    begin = time.perf_counter()
    model = bertkit.load(device="cpu")
    say("1 model", f"bertkit-en-small: {model.runner.parameters()['total'] / 1e6:.1f} million parameters, in the package")
    say("2 fill", "")
    for text, answers in zip(ASKED, model.fill(ASKED, top=3), strict=True):
        say("", f"{text} → {', '.join(f'{piece} {chance:.0%}' for piece, chance in answers[0])}")
    with tempfile.TemporaryDirectory() as scratch:
        _fine_tune(folder or Path(scratch), model, epochs, seed)
    print(f"done in {time.perf_counter() - begin:.0f} s")
    print(f"{folder}/pre-trained/report.html tells more" if folder else "--out FOLDER keeps the models and their reports")


def say(step: str, told: str) -> None:
    """Prints a line that begins with the name of its step."""
    typer.echo(typer.style(f"{step:<15}", bold=step[:1].isdigit()) + told)


def _fine_tune(folder: Path, model: bertkit.Model, epochs: int, seed: int) -> None:
    """Learns topics from sentences of some words and is tested on others, once pre-trained and once not."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, other in (("train", False), ("dev", True)):
        rows = [("text", "label"), *topics(160, seed=other, other=other)]
        (folder / f"{name}.csv").write_text("".join(f'"{text}",{label}\n' for text, label in rows), encoding="utf-8")
    say("3 fine-tune", "which of 8 topics? 160 sentences to learn from, 160 of other words to answer")
    beginner = bertkit.create("small", model.tokenizer, family=model.bundle.family.name, **vars(model.config))
    files: dict[str, Any] = dict(train=folder / "train.csv", dev=folder / "dev.csv", device="cpu", quiet=True)
    settings = [f"epochs={epochs}", f"seed={seed}", "batch=16", "max_length=64"]
    scores = {}
    for name, source in (("pre-trained", model), ("untrained", beginner)):
        results = bertkit.finetune("classification", source.bundle, folder / name, settings=settings, **files)
        scores[name] = results["metrics"]["accuracy"]
    told = ", ".join(f"{name} {score:.0%}" for name, score in scores.items())
    say("", f"right: {told}, by chance {1 / 8:.0%}")
    answer = bertkit.load(folder / "pre-trained" / "model", device="cpu").classify(JUDGED)
    say("4 classify", f"{JUDGED} → {answer.label} {answer.probability:.0%}")


def topics(count: int, seed: int = 0, *, other: bool = False) -> Iterator[tuple[str, str]]:
    """Yields sentences with their topics; with `other`, from a second half of the words."""
    for index in range(count):
        draw = random.Random(f"topics:{seed}:{index}")
        topic, words = draw.choice(list(TOPICS.items()))
        yield draw.choice(FRAMES).format(*draw.sample(words.split()[other::2], 2)), topic
