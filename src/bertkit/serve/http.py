"""Models over HTTP: the routes, and the shapes of requests and answers.

    client → Guard (key, size, timeout, log) → route → Batcher → Model

A bad text fails only its own request; when the server is told to stop, it answers what it has accepted.
"""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import numpy as np
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from pydantic import BaseModel, ConfigDict, Field, create_model

from bertkit.data import records
from bertkit.errors import InputError
from bertkit.serve.batching import Batcher, Busy, QueueFull
from bertkit.serve.guard import REFUSALS, Desk, Guard, Limits, log, refusal
from bertkit.serve.predictor import Candidate, Entity, Model
from bertkit.tasks.choice import Chosen
from bertkit.tasks.classification import Classified, Labelled
from bertkit.tasks.qa import Answered, Span

LOOKED_AT = 3_000_000  # attention weights in an answer, over all layers and heads: some 40 MB of JSON
SAID = {"model_attributes_type": "expected a JSON object, with Content-Type: application/json"}  # clearer than pydantic's
INLINE = 2000  # characters up to which counting tokens is faster than handing it to a thread
TOLD = 10  # errors reported per body; formatting more would keep other requests waiting
Named = TypeVar("Named")
Strings = Annotated[list[str], Field(fail_fast=True)]


def _shape(kind: type, **changes: Any) -> Any:
    """Returns the pydantic model for one of the model's answer types."""
    fields = {name: (hint, ...) for name, hint in (get_type_hints(kind) | changes).items()}
    return create_model(kind.__name__, __doc__=kind.__doc__, **fields)  # type: ignore[call-overload]


if not TYPE_CHECKING:
    Candidate, Entity, Chosen, Classified, Labelled = map(_shape, (Candidate, Entity, Chosen, Classified, Labelled))
    Answered = _shape(Answered, best=list[_shape(Span)])


class Asked(BaseModel):
    """The base of the requests: which model to ask."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(None, description="A name from /v1/models; by default the first model that can answer.")


class Texts(Asked):
    texts: Strings = Field(min_length=1, examples=[["She kneads the dough.", "He mends the ropes."]])


class Cut(Texts):
    truncate: bool = Field(False, description="Cut texts that are too long instead of refusing them.")


class Fill(Cut):
    texts: Strings = Field(min_length=1, examples=[["Paris is the [MASK] of France."]])
    top: int = Field(5, ge=1, le=100, description="Number of candidates for each [MASK].")


class Pairs(Texts):
    pairs: Strings | None = Field(None, description="The second text of each pair, in the same order.")


class Ask(Asked):
    question: str = Field(examples=["Who came?"])
    context: str = Field(examples=["Ann came, Bob went."])


class Choose(Asked):
    prompt: str = Field(examples=["She opened the door and"])
    options: Strings = Field(min_length=2, examples=[["went in.", "was a table."]])


class Embed(Cut):
    pooling: Literal["", "mean", "cls", "max"] = Field("", description="By default as the model was fine-tuned.")
    normalize: bool | None = Field(None, description="Scale to length 1; by default as the model was fine-tuned.")


class Next(Asked):
    a: str = Field(examples=["He went to the shop."])
    b: str = Field(examples=["He bought milk."])
    truncate: bool = False


class Embeddings(BaseModel):
    """A request in OpenAI's embeddings format."""

    model: str | None = None
    input: str | Annotated[Strings, Field(min_length=1)] = Field(examples=["She kneads the dough."])
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="If given, it must be the model's own.")


class Answers(BaseModel, Generic[Named]):
    """The name of the model, and its answers in the order of the texts."""

    model: str
    answers: list[Named]


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: dict[str, int]


class Tokenized(BaseModel):
    pieces: list[str]
    ids: list[int]
    offsets: list[tuple[int, int]] = Field(description="In characters; (0, 0) for special pieces.")


class Looked(BaseModel):
    pieces: list[str]
    weights: list[list[list[list[float]]]] = Field(description="By layer, head, attending piece, attended piece.")


class Served(BaseModel):
    id: str
    object: Literal["model"] = "model"
    answers: list[str]
    positions: int
    labels: list[str] = []


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[Served]


async def _refuse(request: Request, error: Any) -> Response:
    """Returns the response for an error; a 422 names the field, but does not repeat what was sent."""
    if isinstance(error, Busy):
        return refusal(429 if isinstance(error, QueueFull) else 503, str(error), **{"Retry-After": "1"})
    if isinstance(error, RequestValidationError):
        details = [{"loc": e["loc"], "msg": SAID.get(e["type"], e["msg"]), "type": e["type"]} for e in error.errors()[:TOLD]]
        if details[0]["type"] == "json_invalid":
            return refusal(400)
    else:
        fields, word = request.state.fields, str(error).split()[0]  # "model" first, then the route's own
        details = [{"loc": ["body", word if word in fields else fields[1]], "msg": str(error), "type": "input"}]
    return Response(json.dumps({"detail": details}), 422, media_type="application/json")


async def _admit(request: Request, asked: Any, verb: str, texts: Sequence[str]) -> tuple[str, Batcher]:
    """Returns the model to ask; refuses too many texts or tokens."""
    state, desk, limits = request.state, request.app.state.desk, request.app.state.desk.limits
    state.fields = list(type(asked).model_fields)
    name, batcher = desk.pick(verb, asked.model)
    if len(texts) > limits.texts:
        raise HTTPException(413, f"{len(texts)} texts; expected at most {limits.texts}")
    count, short = batcher.model.tokenizer.ids, sum(map(len, texts)) <= INLINE
    ids = count(texts) if short else await asyncio.to_thread(count, texts)
    state.texts, state.tokens = texts, sum(map(len, ids)) + 2 * len(texts)  # with special pieces
    if state.tokens > limits.tokens:
        raise HTTPException(413, f"{state.tokens} tokens; expected at most {limits.tokens}")
    return name, batcher


async def _answer(request: Request, asked: Any, verb: str, *columns: Sequence[Any], **settings: Any) -> Any:
    """Returns the answers to the rows of the columns, which hold texts or choices."""
    texts = [text for rows in columns for row in rows for text in ([row] if isinstance(row, str) else records.texts(row))]
    name, batcher = await _admit(request, asked, verb, texts)
    method = "answer" if verb == "choose" else verb  # which takes many records at once
    found = await asyncio.wrap_future(batcher.ask(method, *columns, tokens=request.state.tokens, **settings))
    return {"model": name, "answers": found.tolist() if isinstance(found, np.ndarray) else found}


router = APIRouter(responses={status: {"description": text} for status, text in REFUSALS.items()})


@router.post("/v1/fill")
async def fill(asked: Fill, request: Request) -> Answers[list[list[Candidate]]]:
    """Returns the likeliest pieces for each [MASK] of each text."""
    return await _answer(request, asked, "fill", asked.texts, top=asked.top, truncate=asked.truncate)


@router.post("/v1/classify")
async def classify(asked: Pairs, request: Request) -> Answers[Classified | Labelled | float]:
    """Returns a label, labels or a number for each text, or for each pair of texts."""
    return await _answer(request, asked, "classify", asked.texts, *([] if asked.pairs is None else [asked.pairs]))


@router.post("/v1/tag")
async def tag(asked: Texts, request: Request) -> Answers[list[Entity]]:
    """Returns the entities of each text, with character offsets."""
    return await _answer(request, asked, "tag", asked.texts)


@router.post("/v1/ask")
async def ask(asked: Ask, request: Request) -> Answers[Answered]:
    """Returns the span of the context that answers the question; "" if there is none."""
    return await _answer(request, asked, "ask", [asked.question], [asked.context])


@router.post("/v1/choose")
async def choose(asked: Choose, request: Request) -> Answers[Chosen]:
    """Returns which option fits the prompt best, and each option's probability."""
    return await _answer(request, asked, "choose", [records.Choice(asked.prompt, tuple(asked.options))])


@router.post("/v1/embed")
async def embed(asked: Embed, request: Request) -> Answers[list[float]]:
    """Returns a vector for each text."""
    settings = asked.model_dump(include={"pooling", "normalize", "truncate"})
    return await _answer(request, asked, "embed", asked.texts, **settings)


@router.post("/v1/similarity")
async def similarity(asked: Cut, request: Request) -> Answers[list[float]]:
    """Returns the cosine similarity of every two texts, a row for each text."""
    found = await _answer(request, asked, "embed", asked.texts, normalize=True, truncate=asked.truncate)
    vectors = np.array(found["answers"], np.float32)
    return found | {"answers": (vectors @ vectors.T).tolist()}


@router.post("/v1/embeddings")
async def embeddings(asked: Embeddings, request: Request) -> EmbeddingList:
    """Returns a vector for each text, in OpenAI's format."""
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    found = await _answer(request, asked, "embed", texts)
    vectors = found["answers"]
    if asked.dimensions not in (None, len(vectors[0])):
        raise InputError(f"dimensions is {asked.dimensions}; this model's vectors have {len(vectors[0])}")
    if asked.encoding_format == "base64":
        vectors = [base64.b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), request.state.tokens)
    return {"model": found["model"], "data": data, "usage": usage}  # type: ignore[return-value]


@router.post("/v1/next")
async def next_sentence(asked: Next, request: Request) -> Answers[float]:
    """Returns the probability that b follows a."""
    return await _answer(request, asked, "next", [asked.a], [asked.b], truncate=asked.truncate)


@router.post("/v1/tokenize")
async def tokenize(asked: Texts, request: Request) -> Answers[Tokenized]:
    """Returns the pieces of each text as the model reads them."""
    name, batcher = await _admit(request, asked, "tokenize", asked.texts)
    model = batcher.model
    found = await asyncio.to_thread(model.tokenizer.encode_batch, asked.texts)
    answers = [Tokenized(pieces=model.spelled(e.ids), ids=e.ids.tolist(), offsets=e.offsets.tolist()) for e in found]
    return Answers(model=name, answers=answers)


@router.post("/v1/attention")
async def attention(asked: Texts, request: Request) -> Answers[Looked]:
    """Returns the attention weights of each text by layer and head, for short texts."""
    name, batcher = await _admit(request, asked, "attention", asked.texts)
    most = int((LOOKED_AT / (batcher.model.config.layers * batcher.model.config.heads)) ** 0.5)
    if request.state.tokens > most:
        raise HTTPException(413, f"{request.state.tokens} tokens; this model's attention is shown for {most} at most")
    found = await asyncio.wrap_future(batcher.ask("attention", asked.texts, tokens=request.state.tokens))
    answers = [Looked(pieces=one.pieces, weights=one.weights.round(4).tolist()) for one in found]
    return Answers(model=name, answers=answers)


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def playground() -> HTMLResponse:
    """Returns a page for trying out the models; it loads nothing from elsewhere."""
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
    page = Path(__file__).with_name("playground.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@router.get("/v1/models")
async def models(request: Request) -> Models:
    """Lists the models that are served, and what each can answer."""
    desk = request.app.state.desk
    served = [{"id": name, **each.model.describe(), "answers": desk.can[name]} for name, each in desk.batchers.items()]
    return {"data": served}  # type: ignore[return-value]


@router.get("/health")
async def health() -> dict[str, str]:
    """Answers while the process is alive."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Answers 200 while the server accepts requests."""
    if request.app.state.desk.draining:
        raise HTTPException(503, REFUSALS[503])
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> str:
    """Returns the metrics of queues, batches, requests and times, for Prometheus."""
    return generate_latest(request.app.state.desk.registry).decode()


def create_app(
    models: Mapping[str, Model], *, limits: Limits | None = None, key: str = "", log_texts: bool = False
) -> FastAPI:
    """Returns an application that serves the models; on shutdown it answers the requests it has accepted."""
    desk = Desk(models, limits or Limits(), key, log_texts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for batcher in desk.batchers.values():
            await asyncio.to_thread(batcher.close)

    app = FastAPI(title="bertkit", lifespan=lifespan, docs_url=None, redoc_url=None)  # these load from elsewhere
    app.state.desk = desk
    told = [Depends(HTTPBearer(auto_error=False))] if key else []  # only for /openapi.json: the Guard checks the key
    app.include_router(router, dependencies=told)
    app.add_middleware(Guard, desk=desk)
    for error in (InputError, RequestValidationError, Busy):
        app.add_exception_handler(error, _refuse)
    return app


class _Server(uvicorn.Server):
    """On a signal, refuses new requests, stops listening and finishes accepted ones; on a second, stops at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.desk.draining = True  # type: ignore[union-attr]
        self.should_exit, self.force_exit = True, self.should_exit


def run(app: FastAPI, host: str, port: int) -> None:
    """Serves until a signal arrives."""
    desk: Desk = app.state.desk
    family, shown = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
    if not host:
        raise InputError("host is empty; expected an address, such as 127.0.0.1, or 0.0.0.0 for everybody's requests")
    with socket.create_server((host, port), family=family, backlog=2048) as door:
        log(event="ready", url=f"http://{shown}:{door.getsockname()[1]}", models=list(desk.batchers))
        patience = int(desk.limits.timeout) + 1
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=patience)
        _Server(config).run([door])
