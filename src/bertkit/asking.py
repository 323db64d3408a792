"""The verbs that ask a model: about texts, about files of rows, or over HTTP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import bertkit
from bertkit import console
from bertkit.atomic import new_file
from bertkit.console import Told, app, verb
from bertkit.errors import InputError, import_extra, short
from bertkit.models import DEFAULT


@verb('bertkit fill "Paris is the [MASK] of France."')
def fill(
    texts: console.Texts,
    model: console.Loaded,
    top: Annotated[int, Option(help="Candidates to show for each [MASK].")] = 5,
    truncate: console.Truncate = False,
) -> Told:
    """Fill in each [MASK] of a text."""
    answers = model.fill(texts, top=top, truncate=truncate)
    yield _rows(texts, "masks", answers)
    marked, plain = model.tokenizer.vocabulary, model.tokenizer.texts
    shown = dict(zip(marked, marked if model.tokenizer.kind == "wordpiece" else plain, strict=True))
    for text, masks in zip(texts, answers, strict=True):
        yield text
        for number, candidates in enumerate(masks, start=1):
            label = f"[{number}] " if len(masks) > 1 else ""
            for piece, chance in candidates:
                yield f"  {label}{shown.get(piece, piece):<16} {chance:6.1%}  {'█' * round(chance * 40)}"


@verb('bertkit embed "A first text." "A second one." --out vectors.npy')
def embed(
    texts: console.Texts,
    model: console.Loaded,
    pooling: Annotated[str, Option(help="mean, max or cls; default: as trained, else mean.")] = "",
    normalize: Annotated[bool, Option("--normalize", help="Scale each vector to length 1.")] = False,
    out: Annotated[Path | None, Option(help="Write the vectors to this .npy file.")] = None,
    truncate: console.Truncate = False,
) -> Told:
    """Turn each text into a vector."""
    vectors = model.embed(texts, pooling=pooling, normalize=normalize, truncate=truncate)
    if out:
        _write_numpy(out, ".npy", vectors)
    yield {"out": str(out), "shape": vectors.shape} if out else {"vectors": vectors}
    for text, vector in zip(texts[:10], vectors, strict=False):
        yield f"{' '.join(f'{value:+.3f}' for value in vector[:6])} …  {short(text)}"
    kept = f" → {out}" if out else "; --out keeps them, --json prints them"
    yield f"{len(vectors)} × {vectors.shape[1]} numbers{kept}"


def _numbers(
    layers: Annotated[str, Option(help="Comma-separated layers; 0: embeddings, -1: last layer.")] = "-1",
) -> list[int]:
    try:
        return [int(part) for part in layers.split(",")]
    except ValueError as error:
        raise InputError(f"layers are {layers!r}; expected whole numbers with commas, such as -1,-2") from error


@verb('bertkit features "A text." --layers -1,-2,-3,-4 --out features.npz')
def features(
    texts: console.Texts,
    layers: Annotated[list[int], _numbers],
    model: console.Loaded,
    out: Annotated[Path | None, Option(help="Write pieces, offsets, vectors and boundaries to this .npz file.")] = None,
    truncate: console.Truncate = False,
) -> Told:
    """Get a vector per piece at the layers you choose."""
    import numpy as np

    found = model.features(texts, layers=layers, truncate=truncate)
    if out:
        pieces, offsets, vectors = zip(*found, strict=True)
        joined = {"pieces": np.concatenate(pieces), "offsets": np.concatenate(offsets)}
        joined |= {"vectors": np.concatenate(vectors, axis=1), "boundaries": np.cumsum([0, *map(len, pieces)])}
        _write_numpy(out, ".npz", **joined)
    yield {"out": str(out), "texts": len(found)} if out else found
    for text, one in zip(texts[:10], found, strict=False):
        yield f"{len(one.pieces)} pieces × {len(layers)} layers × {one.vectors.shape[2]}  {short(text)}"
    yield f"→ {out}" if out else "--out keeps the vectors, --json prints them"


@verb('bertkit next "He went to the shop." "He bought milk." --model M', name="next")
def next_sentence(
    a: Annotated[str, Argument(help="First text.")],
    b: Annotated[str, Argument(help="Text that may follow it.")],
    model: console.Loaded,
    truncate: console.Truncate = False,
) -> Told:
    """Predict whether text B follows text A."""
    chance = model.next(a, b, truncate=truncate)
    yield {"a": a, "b": b, "probability": chance}
    yield f"B follows A: {chance:.1%}" if chance >= 0.5 else f"B does not follow A: {1 - chance:.1%}"


@verb('bertkit classify "What a film!" --model run/model')
def classify(
    texts: console.Texts,
    model: console.Loaded,
    pair: Annotated[list[str] | None, Option(help="Second text of each pair, in order; repeatable.")] = None,
) -> Told:
    """Predict each text's label, labels or number."""
    answers = model.classify(texts, pair)
    yield _rows(texts, "answer", answers)
    for text, answer in zip(texts, answers, strict=True):
        if isinstance(answer, float):
            yield f"{f'{answer:.3f}':<20} {short(text)}"
            continue
        told = ", ".join(answer.labels) if hasattr(answer, "labels") else answer.label
        yield f"{told or 'none':<20} {short(text)}"
        for name, chance in sorted(answer.probabilities.items(), key=lambda item: -item[1])[:5]:
            yield f"  {name:<18} {chance:6.1%}"


@verb('bertkit tag "Angela Merkel visited Paris." --model run/model')
def tag(texts: console.Texts, model: console.Loaded) -> Told:
    """Find the entities in each text."""
    answers = model.tag(texts)
    yield _rows(texts, "entities", answers)
    for text, found in zip(texts, answers, strict=True):
        yield text
        for one in found:
            yield f"  {one.kind:<8} {one.text:<30} {one.probability:6.1%}  characters {one.begin}–{one.end}"


@verb('bertkit ask "Who came?" "Ann came, Bob went." --model run/model')
def ask(
    question: Annotated[str, Argument(help="Question to answer.")],
    context: Annotated[str, Argument(help="Text to find the answer in.")],
    model: console.Loaded,
    top: Annotated[int, Option(min=1, help="Candidate spans to show.")] = 3,
) -> Told:
    """Answer a question with a span of a text."""
    answer = model.ask(question, context)
    yield answer._replace(best=answer.best[:top])
    yield answer.text or "no answer"
    for span in answer.best[:top]:
        yield f"  {span.probability:6.1%}  {short(span.text)}  characters {span.begin}–{span.end}"


@verb('bertkit choose "She opened the door and" "went in." "was a table." --model run/model')
def choose(
    prompt: Annotated[str, Argument(help="Text that the options are to fit.")],
    options: Annotated[list[str], Argument(help="Options to choose from.")],
    model: console.Loaded,
) -> Told:
    """Choose the option that best fits a prompt."""
    answer = model.choose(prompt, options)
    yield answer
    for number, (option, chance) in enumerate(zip(options, answer.probabilities, strict=True)):
        yield f"{'→' if number == answer.option else ' '} {chance:6.1%}  {short(option)}"


@verb('bertkit prompt "A waste." --words good=great,bad=terrible --pattern "{text} It was [MASK]."')
def prompt(
    texts: console.Texts,
    model: console.Loaded,
    words: Annotated[str, Option(help="One word per label: good=great,bad=terrible.")],
    pattern: Annotated[list[str] | None, Option(help="Default: {text} It was [MASK]; --examples picks the best.")] = None,
    examples: Annotated[Path | None, Option(help="File of a few labelled texts: CSV, TSV, JSONL, Parquet.")] = None,
    text: console.TextColumn = None,
    label: console.LabelColumn = None,
) -> Told:
    """Classify texts without training, by filling in a pattern."""
    from bertkit.data.readers import read_records
    from bertkit.serve.prompting import Prompt

    labels = _words_of(words)
    columns = dict(text=text, label=label)
    shown = read_records(examples, "classification", columns, classes=labels).records if examples else []
    answers = Prompt(model, pattern or ["{text} It was [MASK]."], labels, shown).classify(texts)
    yield _rows(texts, "answer", answers)
    for one, answer in zip(texts, answers, strict=True):
        yield f"{answer.label:<16} {answer.probability:6.1%}  {short(one)}"


@verb("bertkit predict run/model reviews.csv --text review --out answers.csv")
def predict(
    model: console.ModelName,
    data: Annotated[Path, Argument(help="File of rows: .csv, .tsv, .jsonl or .parquet.")],
    out: Annotated[Path, Option(help="File to write, in the same format; run again to resume.")],
    text: console.TextColumn = None,
    pair: console.PairColumn = None,
    all_classes: Annotated[bool, Option("--all", help="Write every class's probability.")] = False,
    bad: console.Bad = None,
    fresh: Annotated[bool, Option("--fresh", help="Start over instead of resuming.")] = False,
    workers: console.Workers = 1,
    engine: console.Engine = "local",
    device: console.Device = "auto",
    precision: console.Precision = "fp32",
) -> Told:
    """Answer every row of a file, however large."""
    how: dict[str, Any] = dict(all_classes=all_classes, bad=bad or "stop", fresh=fresh, device=device, precision=precision)
    facts = bertkit.predict(model, data, out, columns=dict(text=text, pair=pair), workers=workers, engine=engine, **how)
    yield facts
    yield f"{facts['rows']:,} rows in {facts['seconds']:,} s → {out}"
    if facts["bad"]:
        yield f"{facts['bad']:,} bad rows were kept aside in {facts['out']}.bad.jsonl"


@app.command(epilog="Example: bertkit serve sentiment=run/model bert-base-uncased --port 8000")
def serve(
    models: Annotated[list[str] | None, Argument(help="Models to serve: MODEL or NAME=MODEL.", show_default=DEFAULT)] = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    key: Annotated[str, Option(envvar="BERTKIT_KEY", help="Require this bearer key.", show_envvar=True)] = "",
    device: console.Device = "auto",
    precision: console.Precision = "fp32",
    max_texts: Annotated[int, Option(min=1, help="Most texts per request.")] = 128,
    max_tokens: Annotated[int, Option(min=1, help="Most tokens per request.")] = 16_384,
    max_body: Annotated[int, Option(min=1, help="Most bytes per request.")] = 1 << 20,
    queue: Annotated[int, Option(min=1, help="Most waiting texts per model.")] = 1024,
    wait: Annotated[float, Option(min=0, max=1000, help="Milliseconds that a batch waits for more texts.")] = 4.0,
    timeout: Annotated[float, Option(min=0.1, max=86_400, help="Seconds until a request fails.")] = 30.0,
    log_texts: Annotated[bool, Option("--log-texts", help="Also log the texts of requests.")] = False,
) -> None:
    """Serve models over HTTP, with a playground page."""
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(library, "serve", "bertkit serve")
    from bertkit.serve.http import Limits, create_app, run

    named = [_named(model) for model in models or [DEFAULT]]
    if len(dict(named)) < len(named):
        raise InputError(f"two models are named alike ({', '.join(name for name, _ in named)}); write NAME=MODEL")
    loaded = {name: bertkit.load(place, device=device, precision=precision) for name, place in named}
    limits = Limits(texts=max_texts, tokens=max_tokens, body=max_body, queue=queue, wait=wait / 1000, timeout=timeout)
    run(create_app(loaded, limits=limits, key=key, log_texts=log_texts), host, port)


def _words_of(text: str) -> dict[str, str]:
    """Parses label=word,label=word, where each label and each word occurs once."""
    parts = [part.partition("=")[::2] for part in text.split(",")]
    labels = {name.strip(): word.strip() for name, word in parts}
    if not all([*labels, *labels.values()]) or len({*labels.values()}) < len(parts):
        raise InputError(f"words are {text!r}; expected another word for each label, such as good=great,bad=terrible")
    return labels


def _rows(texts: list[str], name: str, answers: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"text": text, name: answer} for text, answer in zip(texts, answers, strict=True)]


def _write_numpy(path: Path, ending: str, *array: Any, **arrays: Any) -> None:
    import numpy as np

    if path.suffix != ending:
        raise InputError(f"{path}: expected a name that ends in {ending}")
    with new_file(path) as aside, open(aside, "wb") as stream:
        np.savez(stream, **arrays) if arrays else np.save(stream, array[0])


def _named(model: str) -> tuple[str, str]:
    """Splits NAME=MODEL; without a NAME, it is the last part of the model's path."""
    name, _, place = model.rpartition("=")
    return (name, place) if name and not Path(model).exists() else (Path(model).name or Path(model).resolve().name, model)
