"""`bertkit demo`: the journey on embedded data, from text to a fine-tuned model."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

import bertkit
from bertkit.stories import stories, trades

if TYPE_CHECKING:
    from bertkit.data.store import Store
    from bertkit.serve.predictor import Model

SENTENCE = "Mara is a baker in Elmford. Every morning she goes to the bakery and kneads the dough."

ASKED = "In the evening she carries the horseshoes to the farmers."


def run_demo(folder: Path | None, *, steps: int | None = None, seed: int = 0) -> None:
    """Text → vocabulary → store → a pre-trained BERT → answers → a fine-tuned one. Its files stay in `folder`, if given."""
    with tempfile.TemporaryDirectory() as scratch:
        _journey(folder or Path(scratch), steps, seed)
    kept = f"the reports in {folder}/run and {folder}/trades-pre-trained tell more"
    print(kept if folder else "--out FOLDER keeps the model and its report")


def say(step: str, told: str) -> None:
    """A line behind the name of its step."""
    style = "bold" if step[:1].isdigit() else ""
    Console(highlight=False, soft_wrap=True).print(Text.assemble((f"{step:<15}", style), told))


def _journey(folder: Path, steps: int | None, seed: int) -> None:
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "stories.txt"
    corpus.write_text("\n\n".join(stories(4000, seed)) + "\n", encoding="utf-8")
    say("1 text", f"4,000 made-up stories, {corpus.stat().st_size / 1e6:.1f} MB")
    tokenizer = bertkit.learn_vocabulary([corpus], 400, folder / "vocabulary").tokenizer
    pieces = " ".join(tokenizer.vocabulary[index] for index in tokenizer.encode("Mara kneads the dough.").ids)
    say("2 vocabulary", f"{len(tokenizer):,} pieces: {pieces}")
    store = bertkit.prepare([corpus], folder / "vocabulary", folder / "store")
    entropy = unigram_entropy(store)
    say("3 store", f"{store.tokens:,} tokens; guessing by frequency alone has a loss of {entropy:.2f}")
    say("4 pre-train", "BERT-tiny: hidden pieces and next sentences, a minute or two")
    settings = [f"seed={seed}", *([] if steps is None else [f"steps={steps}"])]
    model = bertkit.load(bertkit.pretrain(folder / "store", folder / "run", recipe="demo", settings=settings), device="cpu")
    say("", f"held-out loss {held_out_loss(folder / 'run'):.2f}, against {entropy:.2f} by frequency alone")
    _ask(model)
    _fine_tune(folder, model)
    print(f"done in {time.perf_counter() - begin:.0f} s")


def _ask(model: Model) -> None:
    """Fills in words, and tells whose story goes on."""
    say("5 answers", "")
    for hidden in ("baker", "morning", "bakery"):
        asked = SENTENCE.replace(f" {hidden}", " [MASK]", 1)
        found = ", ".join(f"{piece} {chance:.0%}" for piece, chance in model.fill(asked, top=3)[0])
        say("   fill", f"{asked} → {found}")
    first, second = (f"{sentence}." for sentence in SENTENCE.rstrip(".").split(". "))
    other = "When the duck is hungry it quacks, and Hugo brings it bread crumbs."
    own, strange = model.next([first, first], [second, other])
    say("   next", f"her own story goes on: {own:.0%}; somebody else's: {strange:.0%} (this takes longer to learn)")


def _fine_tune(folder: Path, model: Model) -> None:
    """Learns trades from sentences at work, is asked about finished goods; once pre-trained, once not."""
    for name, count, finished in (("train", 160, False), ("dev", 160, True)):
        rows = [("text", "label"), *trades(count, seed=finished, finished=finished)]
        (folder / f"{name}.csv").write_text("".join(f'"{text}",{label}\n' for text, label in rows), encoding="utf-8")
    say("6 fine-tune", "which trade? 160 sentences at work to learn from, 160 about finished goods to answer")
    bertkit.create("tiny", model.tokenizer, positions=128).save(folder / "untrained")
    files: dict[str, Any] = dict(train=folder / "train.csv", dev=folder / "dev.csv", device="cpu", quiet=True)
    settings = ["epochs=20", "optimizer.lr=1e-4", "max_length=64"]
    scores = {}
    for name, source in (("pre-trained", folder / "run" / "model"), ("untrained", folder / "untrained")):
        results = bertkit.finetune("classification", source, folder / f"trades-{name}", settings=settings, **files)
        scores[name] = results["metrics"]["accuracy"]
    told = ", ".join(f"{name} {score:.0%}" for name, score in scores.items())
    say("", f"right: {told} (by chance {1 / 8:.0%})")
    answer = bertkit.load(folder / "trades-pre-trained" / "model", device="cpu").classify(ASKED)
    say("   classify", f"{ASKED} → {answer.label} {answer.probability:.0%}")


def unigram_entropy(store: Store) -> float:
    """The loss, in nats, of guessing each piece by its frequency."""
    counts = np.bincount(store.ids_at(np.arange(store.tokens)), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def held_out_loss(run: Path) -> float:
    """The last held-out loss of a run."""
    from bertkit.train.log import read_metrics

    return next(row["held_out_loss"] for row in reversed(read_metrics(run)) if "held_out_loss" in row)
