"""The verbs that ask a model: one-off answers to texts on the command line or in a file, and whole files of rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.console import (
    Bad,
    Device,
    Json,
    LabelColumn,
    ModelName,
    PairColumn,
    Precision,
    TextColumn,
    TextFile,
    Texts,
    Truncate,
    app,
    load,
    print_json,
    short,
)
from bertkit.errors import InputError


@app.command(epilog='Example: bertkit fill "Paris is the [MASK] of France." --model bert-base-uncased')
def fill(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    top: Annotated[int, typer.Option(help="How many candidates for each [MASK].")] = 5,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Fill in each [MASK] of a text."""
    given = _given(texts, file)
    answers = load(model, device, precision).fill(given, top=top, truncate=truncate)
    if as_json:
        pairs = zip(given, answers, strict=True)
        return print_json([{"text": t, "masks": [[c._asdict() for c in mask] for mask in masks]} for t, masks in pairs])
    for text, masks in zip(given, answers, strict=True):
        print(text)
        for number, candidates in enumerate(masks, start=1):
            for candidate in candidates:
                label = f"[{number}] " if len(masks) > 1 else ""
                print(
                    f"  {label}{candidate.piece:<16} {candidate.probability:6.1%}  {'█' * round(candidate.probability * 40)}"
                )


@app.command(epilog='Example: bertkit embed "A first text." "A second one." --model M --out vectors.npy')
def embed(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    pooling: Annotated[str, typer.Option(help="mean or max (over the pieces) or cls.")] = "",
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file.")] = None,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Turn each text into a vector."""
    given = _given(texts, file)
    vectors = load(model, device, precision).embed(given, pooling=pooling, normalize=normalize, truncate=truncate)
    if out:
        _write_numpy(out, ".npy", vectors)
    if as_json:
        return print_json({"out": str(out), "shape": vectors.shape} if out else {"vectors": vectors.tolist()})
    for text, vector in zip(given[:10], vectors, strict=False):
        print(f"{' '.join(f'{value:+.3f}' for value in vector[:6])} …  {short(text)}")
    print(
        f"{len(vectors)} × {vectors.shape[1]} numbers" + (f" → {out}" if out else "; --out keeps them, --json prints them")
    )


@app.command(epilog='Example: bertkit features "A text." --model M --layers -1,-2,-3,-4 --out features.npz')
def features(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    layers: Annotated[str, typer.Option(help="Layers, with commas: 0 is the embeddings, -1 the last.")] = "-1",
    out: Annotated[
        Path | None, typer.Option(help="Write pieces, offsets, vectors and boundaries to this .npz file.")
    ] = None,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Give every piece's vectors at chosen layers."""
    import numpy as np

    given, chosen = _given(texts, file), _numbers(layers)
    found = load(model, device, precision).features(given, layers=chosen, truncate=truncate)
    if out:
        _write_numpy(
            out,
            ".npz",
            pieces=np.array([piece for one in found for piece in one.pieces]),
            offsets=np.concatenate([one.offsets for one in found]),
            vectors=np.concatenate([one.vectors for one in found], axis=1),
            boundaries=np.cumsum([0, *(len(one.pieces) for one in found)]),
        )
    if as_json:
        rows = [{"pieces": one.pieces, "offsets": one.offsets.tolist(), "vectors": one.vectors.tolist()} for one in found]
        return print_json({"out": str(out), "texts": len(found)} if out else rows)
    for text, one in zip(given[:10], found, strict=False):
        print(f"{len(one.pieces)} pieces × {len(chosen)} layers × {one.vectors.shape[2]}  {short(text)}")
    print(f"→ {out}" if out else "--out keeps the vectors, --json prints them")


@app.command(name="next", epilog='Example: bertkit next "He went to the shop." "He bought milk." --model M')
def next_sentence(
    model: ModelName,
    a: Annotated[str, typer.Argument(help="The first text.")],
    b: Annotated[str, typer.Argument(help="The text that may follow it.")],
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Tell whether B follows A."""
    chance = load(model, device, precision).next(a, b, truncate=truncate)
    if as_json:
        return print_json({"a": a, "b": b, "probability": chance})
    print(f"{'B follows A' if chance >= 0.5 else 'B does not follow A'}: {chance:.1%}")


@app.command(epilog='Example: bertkit classify "What a film!" --model run/model')
def classify(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    pair: Annotated[list[str] | None, typer.Option(help="The second text of each, in the same order.")] = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Tell each text's label, labels or number."""
    given = _given(texts, file)
    answers = load(model, device, precision).classify(given, pair)
    if as_json:
        return _print_answers(given, answers)
    for text, answer in zip(given, answers, strict=True):
        chances = {} if isinstance(answer, float) else answer.probabilities
        several = hasattr(answer, "labels")
        told = f"{answer:.3f}" if isinstance(answer, float) else ", ".join(answer.labels) if several else answer.label
        ranked = sorted(chances.items(), key=lambda item: -item[1])[:5]
        print(f"{told or 'none':<20} {short(text)}" + "".join(f"\n  {name:<18} {chance:6.1%}" for name, chance in ranked))


@app.command(epilog='Example: bertkit tag "Angela Merkel visited Paris." --model run/model')
def tag(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Find the entities of each text."""
    given = _given(texts, file)
    answers = load(model, device, precision).tag(given)
    if as_json:
        return print_json(
            [{"text": t, "entities": [e._asdict() for e in found]} for t, found in zip(given, answers, strict=True)]
        )
    for text, found in zip(given, answers, strict=True):
        print(text)
        for entity in found:
            print(f"  {entity.kind:<8} {entity.text:<30} {entity.probability:6.1%}  characters {entity.begin}–{entity.end}")


@app.command(epilog='Example: bertkit ask "Who came?" "Ann came, Bob went." --model run/model')
def ask(
    model: ModelName,
    question: Annotated[str, typer.Argument(help="The question.")],
    context: Annotated[str, typer.Argument(help="The text that may answer it.")],
    top: Annotated[int, typer.Option(help="How many spans to show.")] = 3,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Answer a question with a part of a text."""
    answer = load(model, device, precision).ask(question, context)
    if as_json:
        return print_json(answer._asdict() | {"best": [span._asdict() for span in answer.best[:top]]})
    print(answer.text or "no answer")
    for span in answer.best[:top]:
        print(f"  {span.probability:6.1%}  {short(span.text)}  characters {span.begin}–{span.end}")


@app.command(epilog='Example: bertkit choose "She opened the door and" "went in." "was a table." --model run/model')
def choose(
    model: ModelName,
    prompt: Annotated[str, typer.Argument(help="The beginning.")],
    options: Annotated[list[str], typer.Argument(help="What may go with it.")],
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Choose the option that goes with a prompt."""
    answer = load(model, device, precision).choose(prompt, options)
    if as_json:
        return print_json(answer._asdict())
    for number, (option, chance) in enumerate(zip(options, answer.probabilities, strict=True)):
        print(f"{'→' if number == answer.option else ' '} {chance:6.1%}  {short(option)}")


@app.command(
    epilog='Example: bertkit prompt "A waste." -m M --words good=great,bad=terrible --pattern "{text} It was [MASK]."'
)
def prompt(
    model: ModelName,
    words: Annotated[str, typer.Option(help="A word for each label: good=great,bad=terrible.")],
    texts: Texts = None,
    file: TextFile = None,
    pattern: Annotated[list[str] | None, typer.Option(help="Around the text; of several, examples choose the best.")] = None,
    examples: Annotated[Path | None, typer.Option(help="A few labelled texts: CSV, TSV, JSONL or Parquet.")] = None,
    text: TextColumn = None,
    label: LabelColumn = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Classify without training, by filling in a pattern."""
    from bertkit.data.readers import Columns, read_records
    from bertkit.serve.prompting import Prompt

    given = _given(texts, file)
    labels = {name: word for name, equals, word in (part.partition("=") for part in words.split(",")) if equals}
    shown = (
        read_records(examples, "classification", Columns(text=text, label=label), classes=labels).records if examples else []
    )
    asked = Prompt(load(model, device, precision), pattern or ["{text} It was [MASK]."], labels, shown)
    answers = asked.classify(given)
    if as_json:
        return _print_answers(given, answers)
    for one, answer in zip(given, answers, strict=True):
        print(f"{answer.label:<16} {answer.probability:6.1%}  {short(one)}")


@app.command(epilog="Example: bertkit predict run/model reviews.csv --text review --out answers.csv")
def predict(
    model: Annotated[str, typer.Argument(help="A model folder, a Google checkpoint, or a hub name.")],
    data: Annotated[Path, typer.Argument(help="The rows: .csv, .tsv, .jsonl or .parquet.")],
    out: Annotated[Path, typer.Option(help="The file to write, of the same format; run again to go on.")],
    text: TextColumn = None,
    pair: PairColumn = None,
    all_classes: Annotated[bool, typer.Option("--all", help="Tell every class's probability.")] = False,
    bad: Bad = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever is there.")] = False,
    workers: Annotated[int, typer.Option(help="Processes, or actors on a cluster.")] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines.")] = "local",
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Answer every row of a file, however large; run again, it goes on where it stopped."""
    from bertkit import pipeline
    from bertkit.data.readers import Columns

    how: dict[str, Any] = dict(all_classes=all_classes, bad=bad or "stop", fresh=fresh, device=device, precision=precision)
    columns = Columns(text=text, pair=pair)
    facts = pipeline.predict(model, data, out, columns=columns, workers=workers, engine=engine, **how)
    if as_json:
        return print_json(facts)
    print(f"{facts['rows']:,} rows in {facts['seconds']:,} s → {out}")
    if facts["bad"]:
        print(f"{facts['bad']:,} bad rows were kept aside in {out}.bad.jsonl")


def _print_answers(texts: list[str], answers: Sequence[Any]) -> None:
    plain = (answer if isinstance(answer, float) else answer._asdict() for answer in answers)
    print_json([{"text": text, "answer": answer} for text, answer in zip(texts, plain, strict=True)])


def _given(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts of the command line, or of a file."""
    if bool(texts) == bool(file):
        raise InputError("give texts, or --file with one text a line; not both, not neither")
    if texts:
        return texts
    try:
        content = sys.stdin.read() if str(file) == "-" else Path(str(file)).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error
    if not content.strip():
        raise InputError(f"{file}: holds no text; expected one text a line")
    return content.removesuffix("\n").split("\n")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"layers are {text!r}; expected whole numbers with commas, such as -1,-2") from error


def _write_numpy(path: Path, ending: str, *array: Any, **arrays: Any) -> None:
    import numpy as np

    from bertkit.atomic import new_file

    if path.suffix != ending:
        raise InputError(f"{path}: expected a name that ends in {ending}")
    with new_file(path) as aside, open(aside, "wb") as stream:
        np.savez(stream, **arrays) if arrays else np.save(stream, array[0])
