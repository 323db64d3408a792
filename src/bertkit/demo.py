"""`bertkit demo`: the journey on embedded data, from text to a fine-tuned model."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

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
        console = Console(highlight=False, soft_wrap=True)
        _journey(folder or Path(scratch), console, steps, seed)
        console.print(
            f"the reports in {folder}/run and {folder}/trades-pre-trained tell more"
            if folder
            else "--out FOLDER keeps the model and its report"
        )


def _journey(folder: Path, console: Console, steps: int | None, seed: int) -> None:
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "stories.txt"
    corpus.write_text("\n\n".join(stories(4000, seed)) + "\n", encoding="utf-8")
    console.print(f"[bold]1 text[/]        4,000 made-up stories, {corpus.stat().st_size / 1e6:.1f} MB")
    tokenizer = bertkit.learn_vocabulary([corpus], 400, folder / "vocabulary").tokenizer
    pieces = " ".join(tokenizer.vocabulary[index] for index in tokenizer.encode("Mara kneads the dough.").ids)
    console.print(f"[bold]2 vocabulary[/]  {len(tokenizer):,} pieces: ", end="")
    console.print(pieces, markup=False)
    store = bertkit.prepare([corpus], folder / "vocabulary", folder / "store")
    entropy = unigram_entropy(store)
    console.print(f"[bold]3 store[/]       {store.tokens:,} tokens; guessing by frequency alone has a loss of {entropy:.2f}")
    console.print("[bold]4 pre-train[/]   BERT-tiny: hidden pieces and next sentences, a minute or two")
    settings = [f"seed={seed}", *([] if steps is None else [f"steps={steps}"])]
    model = bertkit.load(bertkit.pretrain(folder / "store", folder / "run", recipe="demo", settings=settings), device="cpu")
    loss = held_out_loss(folder / "run")
    console.print(f"               held-out loss {loss:.2f}, against {entropy:.2f} by frequency alone")
    console.print("[bold]5 answers[/]")
    for hidden in ("baker", "morning", "bakery"):
        best = model.fill(SENTENCE.replace(f" {hidden}", " [MASK]", 1), top=3)[0]
        found = ", ".join(f"{candidate.piece} {candidate.probability:.0%}" for candidate in best)
        console.print(f"   fill        {SENTENCE.replace(f' {hidden}', ' [MASK]', 1)} → {found}", markup=False)
    follows = model.next("Mara is a baker in Elmford.", "Every morning she goes to the bakery and kneads the dough.")
    strange = model.next(
        "Mara is a baker in Elmford.", "When the duck is hungry it quacks, and Hugo brings it bread crumbs."
    )
    console.print(
        f"   next        her own story goes on: {follows:.0%}; somebody else's: {strange:.0%} (this takes longer to learn)"
    )
    _fine_tune(folder, console, model)
    console.print(f"done in {time.perf_counter() - begin:.0f} s")


def _fine_tune(folder: Path, console: Console, model: Model) -> None:
    """Learns trades from sentences at work, is asked about finished goods; once pre-trained, once not."""
    for name, count, finished in (("train", 160, False), ("dev", 160, True)):
        rows = [("text", "label"), *trades(count, seed=finished, finished=finished)]
        (folder / f"{name}.csv").write_text("".join(f'"{text}",{label}\n' for text, label in rows), encoding="utf-8")
    console.print(
        "[bold]6 fine-tune[/]   which trade? 160 sentences at work to learn from, 160 about finished goods to answer"
    )
    bertkit.create("tiny", model.tokenizer, positions=128).save(folder / "untrained")
    files: dict[str, Any] = dict(train=folder / "train.csv", dev=folder / "dev.csv", device="cpu", quiet=True)
    settings = ["epochs=20", "optimizer.lr=1e-4", "max_length=64"]
    scores = {}
    for name, source in (("pre-trained", folder / "run" / "model"), ("untrained", folder / "untrained")):
        results = bertkit.finetune("classification", source, folder / f"trades-{name}", settings=settings, **files)
        scores[name] = results["metrics"]["accuracy"]
    told = ", ".join(f"{name} {score:.0%}" for name, score in scores.items())
    console.print(f"               right: {told} (by chance {1 / 8:.0%})")
    answer = bertkit.load(folder / "trades-pre-trained" / "model", device="cpu").classify(ASKED)
    console.print(f"   classify    {ASKED} → {answer.label} {answer.probability:.0%}", markup=False)


def unigram_entropy(store: Store) -> float:
    """The loss, in nats, of guessing each piece by its frequency."""
    counts = np.bincount(store.ids_at(np.arange(store.tokens)), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def held_out_loss(run: Path) -> float:
    """The last held-out loss of a run."""
    from bertkit.train.log import read_metrics

    return next(row["held_out_loss"] for row in reversed(read_metrics(run)) if "held_out_loss" in row)
