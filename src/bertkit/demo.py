"""`bertkit demo`: the journey on embedded data, as far as the package goes today."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from bertkit.pipeline import convert, create, learn_vocabulary
from bertkit.stories import stories

SENTENCE = "Mara is a baker in Elmford, and every morning she kneads the dough."


def run_demo(folder: Path | None, *, seed: int = 0) -> None:
    """Text → vocabulary → a new BERT → its artifact → loaded again → answers. Leaves its files in `folder`, if given."""
    with tempfile.TemporaryDirectory() as scratch:
        _journey(folder or Path(scratch), Console(highlight=False), seed)


def _journey(folder: Path, console: Console, seed: int) -> None:
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "stories.txt"
    corpus.write_text("\n\n".join(stories(2000, seed)) + "\n", encoding="utf-8")
    console.print(f"[bold]1 text[/]        2,000 made-up stories, {corpus.stat().st_size / 1e6:.1f} MB")
    learned = learn_vocabulary([corpus], 400, folder / "vocabulary")
    tokenizer = learned.tokenizer
    console.print(f"[bold]2 vocabulary[/]  {len(tokenizer):,} pieces learned from {learned.words:,} distinct words")
    pieces = [tokenizer.vocabulary[index] for index in tokenizer.encode(SENTENCE).ids]
    console.print(f"               {' '.join(pieces)}", markup=False)
    create("tiny", tokenizer, seed=seed).save(folder / "random")
    model = convert(folder / "random", folder / "model")
    total = model.describe()["parameters"]["total"]
    console.print(f"[bold]3 model[/]       BERT-tiny, {total:,} parameters, saved as a Hugging Face folder and loaded again")
    masked = SENTENCE.replace("dough", "[MASK]")
    console.print("[bold]4 answers[/]     of random weights, so they are noise: this model has not been trained")
    found = ", ".join(f"{c.piece} {c.probability:.4f}" for c in model.fill(masked, top=3)[0])
    console.print(f"   fill        {masked} → {found}", markup=False)
    vectors = model.embed([SENTENCE, SENTENCE.replace("baker", "smith"), "It is winter now."], normalize=True)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    console.print(f"   embed       similarity to a like sentence {near:.3f}, to another one {far:.3f}")
    chance = model.next(SENTENCE, "In the evening she carries the bread to hungry children.")
    console.print(f"   next        the second sentence follows the first: {chance:.3f}")
    console.print(f"done in {time.perf_counter() - begin:.1f} s")
