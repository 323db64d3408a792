"""The server as a client meets it: every route, every refusal, many clients at once, and clients that misbehave."""

import asyncio
import base64
import json
import shutil
from threading import Event
from unittest import mock

import numpy as np
import pytest
import torch
from support.exports import bundle_of, exported
from support.records import RECORDS
from tasks.test_task import WORDS

import bertkit
from bertkit.bundle.bundle import Bundle
from bertkit.errors import InputError
from bertkit.model.config import Config
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings
from bertkit.text.tokenizer import Tokenizer

WHY = "needs the extra serve, and httpx2 from the extra dev"
http = pytest.importorskip("bertkit.serve.http", reason=WHY)
httpx2 = pytest.importorskip("httpx2", reason=WHY)
fastapi = pytest.importorskip("fastapi", reason=WHY)
TestClient = pytest.importorskip("fastapi.testclient", reason=WHY).TestClient
Limits, create_app = http.Limits, http.create_app

SOON = 10
TEXT = "the cat went to the house ."
ASKED = {
    "fill": {"texts": ["the [MASK] went", "[MASK] [MASK]"], "top": 3},
    "next": {"a": "the cat", "b": "went to the house"},
    "classify": {"texts": [TEXT, "the dog"]},
    "tag": {"texts": [TEXT, "the dog"]},
    "ask": {"question": "where did it go ?", "context": TEXT},
    "choose": {"prompt": "the animal went to", "options": ["the house", "it", "the dog"]},
    "embed": {"texts": [TEXT, "the dog"], "normalize": True},
    "similarity": {"texts": [TEXT, "the dog", "it"]},
    "tokenize": {"texts": ["the cat"]},
    "attention": {"texts": ["the cat", "it"]},
}


@pytest.fixture(scope="module")
def models():
    """A small model of every task, and one that was only pre-trained, all with random weights."""
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], cased=False)
    config = Config(vocabulary=len(tokenizer), layers=1, width=16, heads=2, feedforward=32, positions=64)
    torch.manual_seed(0)
    made = {"plain": bertkit.create("tiny", tokenizer, positions=64)}
    for name, kind in TASKS.items():
        task = kind(kind.learn(TaskSettings(task=name, max_length=32), RECORDS[name]))
        made[name] = bertkit.Model(Bundle(build_network(config, task), tokenizer, task=task), device="cpu")
    return made


@pytest.fixture(scope="module")
def client(models):
    with TestClient(create_app(models)) as client:
        yield client


@pytest.fixture
def door(model):
    """Keeps `model` from embedding until it is set."""
    door, embed = Event(), model.embed
    model.embed = lambda *texts, **settings: door.wait(SOON) and embed(*texts, **settings)
    yield door
    door.set()


def answers(client, verb, body=None, **more):
    reply = client.post(f"/v1/{verb}", json=(body or ASKED[verb]) | more)
    assert reply.status_code == 200, reply.text
    return reply.json()["answers"]


def plain(answer):
    """A model's answer as JSON has it."""
    if hasattr(answer, "_asdict"):
        return {name: plain(value) for name, value in answer._asdict().items()}
    return [plain(one) for one in answer] if isinstance(answer, list | tuple) else answer


def test_every_route_gives_the_models_own_answers(client, models):
    assert answers(client, "fill") == plain(models["plain"].fill(ASKED["fill"]["texts"], top=3))
    assert answers(client, "next") == pytest.approx([models["plain"].next(*ASKED["next"].values())])
    for task in ("classification", "multilabel", "regression"):
        assert answers(client, "classify", model=task) == plain(models[task].classify(ASKED["classify"]["texts"]))
    paired = answers(client, "classify", {"texts": [TEXT], "pairs": ["the dog"]})
    assert paired == plain(models["classification"].classify([TEXT], ["the dog"]))
    assert answers(client, "tag") == plain(models["tagging"].tag(ASKED["tag"]["texts"]))
    assert answers(client, "ask") == [plain(models["qa"].ask(*ASKED["ask"].values()))]
    assert answers(client, "choose") == [plain(models["choice"].choose(*ASKED["choose"].values()))]
    vectors = models["plain"].embed([TEXT, "the dog", "it"], normalize=True)
    np.testing.assert_allclose(answers(client, "embed"), vectors[:2], atol=1e-6)
    np.testing.assert_allclose(answers(client, "similarity"), vectors @ vectors.T, atol=1e-5)
    (found,) = answers(client, "tokenize")
    assert (found["pieces"], found["offsets"][2]) == (["[CLS]", "the", "cat", "[SEP]"], [4, 7])


@pytest.mark.parametrize("asked", ["the dog", ["the dog", TEXT]])
def test_openai_clients_understand_the_embeddings(client, models, asked):
    expected = models["similarity"].embed([asked] if isinstance(asked, str) else asked)
    reply = client.post("/v1/embeddings", json={"input": asked, "model": "similarity", "user": "me"}).json()
    np.testing.assert_allclose([one["embedding"] for one in reply["data"]], expected, atol=1e-6)
    assert (reply["object"], reply["model"], reply["data"][0]["object"]) == ("list", "similarity", "embedding")
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 2
    body = {"input": asked, "model": "similarity", "encoding_format": "base64"}
    coded = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), expected[0], atol=1e-6)


def test_it_tells_what_it_serves(client):
    told = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert told["plain"]["answers"] == ["embed", "fill", "next", "tokenize", "attention"]
    assert told["similarity"]["answers"] == ["embed", "tokenize", "attention"]
    assert len(told["classification"]["labels"]) >= 2
    paths = client.get("/openapi.json").json()["paths"]
    assert {f"/v1/{verb}" for verb in [*ASKED, "embeddings"]} < set(paths)
    assert [client.get(path).json()["status"] for path in ("/health", "/ready")] == ["alive", "ready"]


def test_attention_is_asked_of_a_model_that_shows_it(models, tmp_path):
    with TestClient(
        create_app({"fast": bertkit.Model(exported(bundle_of(), tmp_path / "m")), "plain": models["plain"]})
    ) as client:
        assert client.post("/v1/attention", json=ASKED["attention"]).json()["model"] == "plain"
        assert client.post("/v1/tokenize", json=ASKED["tokenize"]).json()["model"] == "fast"
        told = {one["id"]: one["answers"] for one in client.get("/v1/models").json()["data"]}
        assert (told["fast"], "attention" in told["plain"]) == (["embed", "fill", "next", "tokenize"], True)


def test_attention_is_shown_as_far_as_an_answer_goes(client, monkeypatch):
    """A large model has many heads in many layers: their weights are hundreds of megabytes for a few sentences."""
    monkeypatch.setattr(http, "LOOKED_AT", 2 * 2 * 4**2)  # two heads in two layers
    assert client.post("/v1/attention", json={"texts": ["the cat"], "model": "plain"}).status_code == 200
    reply = client.post("/v1/attention", json={"texts": ["the cat went"], "model": "plain"})
    assert (reply.status_code, reply.json()["detail"]) == (413, "5 tokens; this model's attention is shown for 4 at most")


BAD = [
    ("fill", {"texts": ["the [MASK]", "no mask"]}, "texts", "no [MASK] in 'no mask'"),
    ("fill", {"texts": ["[MASK]"], "top": 99}, "top", "top is 99"),
    (
        "fill",
        {"texts": ["[MASK]"], "model": "qa"},
        "model",
        "model 'qa' cannot fill; it can embed, ask, tokenize, attention",
    ),
    ("embed", {"texts": ["a"], "model": "none"}, "model", "'none' is not served; expected one of plain, "),
    ("embed", {"texts": []}, "texts", "at least 1 item"),
    ("embed", {"texts": [TEXT, " "]}, "texts", "text 2 is empty"),
    ("embed", {"texts": ["the " * 80]}, "texts", "text 1 has 82 pieces; this model takes 1 to 64"),
    ("embed", {"text": "a"}, "texts", "Field required"),
    ("embed", {"texts": ["a"], "poling": "cls"}, "poling", "not permitted"),
    ("embed", {"texts": ["a"], "pooling": "min"}, "pooling", "'mean', 'cls' or 'max'"),
    ("classify", {"texts": ["a", "b"], "pairs": ["c"]}, "pairs", "pairs are 1 for 2 texts"),
    ("tag", {"texts": [""]}, "texts", "nothing to read"),
    ("choose", {"prompt": "a", "options": ["b"]}, "options", "at least 2 items"),
    ("embeddings", {"input": [[1, 2]]}, "input", "valid string"),
    ("embeddings", {"input": "the cat", "dimensions": 8}, "dimensions", "dimensions is 8; this model's vectors have 128"),
]


@pytest.mark.parametrize(("verb", "body", "field", "message"), BAD)
def test_bad_questions_name_the_field(client, verb, body, field, message):
    reply = client.post(f"/v1/{verb}", json=body)
    assert reply.status_code == 422
    details = reply.json()["detail"]
    assert any(one["loc"][1] == field and message in one["msg"] for one in details), details


NONSENSE = [b"", b"{", b"null", b"[" * 100_000, b'{"texts": ["\xff"]}', b'{"texts": [NaN]}', b'{"texts": ["\\ud800"]}']


@pytest.mark.parametrize("content", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_the_clients_fault(client, content):
    reply = client.post("/v1/embed", content=content, headers={"Content-Type": "application/json"})
    assert 400 <= reply.status_code < 500
    reply.json()


@pytest.mark.parametrize("body", [{"texts": [1] * 20_000}, {"texts": ["a"], **{f"k{n}": 1 for n in range(20_000)}}])
def test_of_many_faults_a_few_are_told(client, body):
    """A million of them would be a long answer, made while all others wait."""
    reply = client.post("/v1/embed", json=body)
    assert (reply.status_code, len(reply.content) < 2000) == (422, True)


def test_json_that_is_not_called_so_is_told_how(client):
    for content, kind in ((b'{"texts": ["the cat"]}', "application/x-www-form-urlencoded"), (b"[1]", "application/json")):
        (told,) = client.post("/v1/embed", content=content, headers={"Content-Type": kind}).json()["detail"]
        assert told["msg"] == "expected a JSON object, with Content-Type: application/json"


def test_limits(model):
    client = TestClient(create_app({"m": model}, limits=Limits(texts=3, tokens=40, body=2000)))
    assert client.post("/v1/embed", json={"texts": ["a", "b", "c"]}).status_code == 200
    assert "4 texts; expected at most 3" in client.post("/v1/embed", json={"texts": list("abcd")}).text
    assert "62 tokens; expected at most 40" in client.post("/v1/embed", json={"texts": ["a " * 60]}).text
    stream = client.post("/v1/embed", content=(b" " * 500 for _ in range(5)))  # no Content-Length
    assert (stream.status_code, stream.json()["detail"]) == (413, "the body has more than 2,000 bytes")
    assert client.post("/v1/embed", json={"texts": ["a " * 2000]}).status_code == 413


def test_the_key(model):
    client = TestClient(create_app({"m": model}, key="schlüssel"))
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "schlüssel".encode()}):
        reply = client.get("/v1/models", headers=given)
        assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert client.get("/v1/models", headers={"Authorization": "bearer schlüssel".encode()}).status_code == 200
    assert client.get("/v1/models", headers={"Authorization": "Bearer Schlüssel".encode()}).status_code == 401
    (scheme,) = client.get("/openapi.json").json()["components"]["securitySchemes"].values()
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert client.get("/metrics").status_code == 401
    assert client.get("/v1/models", headers={"Authorization": "Bearer schlüssel".encode()}).status_code == 200
    assert client.get("/health").status_code == 200


def test_the_key_is_asked_for_below_another_application_s_path_too(model):
    app, outer = create_app({"m": model}, key="secret"), fastapi.FastAPI()
    outer.mount("/below", app)
    for client in (TestClient(outer), TestClient(app, root_path="/below")):
        assert client.get("/below/v1/models").status_code == client.get("/below/metrics").status_code == 401
        assert client.get("/below/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.get("/below/health").status_code == 200


def test_many_clients_get_no_answer_of_others(models):
    words = [word for word in WORDS if word.isalpha()]
    texts = [" ".join(words[n % len(words)] for n in range(first, first + 1 + first % 9)) for first in range(64)]

    async def ask(client, number):
        text, verb = texts[number], ("embed", "fill", "classify", "ask")[number % 4]
        body = {"embed": {"texts": [text]}, "fill": {"texts": [f"{text} [MASK]"]}, "classify": {"texts": [text]}}
        reply = await client.post(f"/v1/{verb}", json=body.get(verb) or {"question": "who ?", "context": text})
        return verb, text, reply.json()["answers"][0]

    async def ask_all():
        transport = httpx2.ASGITransport(create_app(models))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(64)))

    for verb, text, found in asyncio.run(ask_all()):
        if verb == "embed":
            np.testing.assert_allclose(found, models["plain"].embed([text])[0], atol=1e-5)
        elif verb == "fill":
            expected = models["plain"].fill(f"{text} [MASK]")[0]
            np.testing.assert_allclose(
                [one["probability"] for one in found[0]], [one.probability for one in expected], atol=1e-5
            )
        elif verb == "classify":
            assert found["probability"] == pytest.approx(models["classification"].classify(text).probability, abs=1e-5)
        else:
            assert found["text"] == models["qa"].ask("who ?", text).text


async def visit(app, receive, path="/v1/embed"):
    """The statuses of a request whose body comes from `receive`."""
    statuses = []

    async def send(message):
        statuses.append(message.get("status"))

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope | {"headers": headers, "state": {}}, receive, send)
    return statuses[:1]


def body_then(message):
    """A `receive` that gives the body, and then what `message` makes."""
    parts = iter([{"type": "http.request", "body": json.dumps({"texts": ["mara is"]}).encode()}])

    async def receive():
        return next(parts, None) or await message()

    return receive


async def never():
    await asyncio.sleep(SOON)


async def gone():
    await asyncio.sleep(0.1)
    return {"type": "http.disconnect"}


def busy(app):
    """A request that keeps the worker of `door`'s model busy."""
    return app.state.desk.batchers["m"].ask("embed", ["busy"], tokens=1)


def wait_until_begun(future):
    while not future.running():
        pass


def test_a_client_that_goes_away_costs_nothing(model, door, capsys):
    app = create_app({"m": model})
    wait_until_begun(busy(app))
    assert asyncio.run(visit(app, body_then(gone))) == []
    assert app.state.desk.batchers["m"].waiting == 0
    assert json.loads(capsys.readouterr().err)["status"] == 499


def test_slow_answers_and_slow_bodies_time_out(model, door):
    app = create_app({"m": model}, limits=Limits(timeout=0.2))
    wait_until_begun(busy(app))
    assert asyncio.run(visit(app, body_then(never))) == [504]
    assert app.state.desk.batchers["m"].waiting == 0
    assert asyncio.run(visit(app, never)) == [408]


def test_a_full_queue_is_429_at_once(model, door):
    app = create_app({"m": model}, limits=Limits(queue=2))
    wait_until_begun(busy(app))
    waiting = [busy(app), busy(app)]
    reply = TestClient(app).post("/v1/embed", json={"texts": ["mara"]})
    assert (reply.status_code, reply.headers["Retry-After"]) == (429, "1")
    door.set()
    assert all(len(future.result(SOON)) == 1 for future in waiting)
    assert TestClient(app).post("/v1/embed", json={"texts": ["mara"]}).status_code == 200


def test_draining_turns_away_and_finishes(model, door):
    app = create_app({"m": model})
    with TestClient(app) as client:
        accepted = busy(app)
        app.state.desk.draining = True
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        reply = client.post("/v1/embed", json={"texts": ["mara"]})
        assert (reply.status_code, reply.headers["Connection"]) == (503, "close")
        door.set()
    assert len(accepted.result(0)) == 1


def test_a_bug_is_500_and_the_server_lives_on(model):
    broken = iter([RuntimeError("a bug")])

    def embed(texts, **settings):
        raise next(broken)

    model.embed, kept = embed, model.embed
    client = TestClient(create_app({"m": model}), raise_server_exceptions=False)
    assert client.post("/v1/embed", json={"texts": ["mara"]}).status_code == 500
    model.embed = kept
    assert client.post("/v1/embed", json={"texts": ["mara"]}).status_code == 200


def test_a_folder_that_vanishes_is_not_missed(model, tmp_path):
    model.save(tmp_path / "m")
    with TestClient(create_app({"m": bertkit.load(tmp_path / "m", device="cpu")})) as client:
        before = client.post("/v1/embed", json={"texts": [TEXT]}).json()["answers"]
        shutil.rmtree(tmp_path / "m")
        assert client.post("/v1/embed", json={"texts": [TEXT]}).json()["answers"] == before
        assert client.get("/ready").status_code == 200


@pytest.mark.parametrize("log_texts", [False, True])
def test_the_log_is_a_line_of_json_a_request(model, capsys, log_texts):
    client = TestClient(create_app({"m": model}, log_texts=log_texts))
    client.post("/v1/embed", json={"texts": ["mara is", "baker"]})
    client.get("/nowhere/secret")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    told = (first["route"], first["status"], first["texts"], first["tokens"], first.get("said"))
    assert told == ("/v1/embed", 200, 2, 7, ["mara is", "baker"] if log_texts else None)
    assert (second["route"], second["status"]) == ("other", 404)


def test_a_log_that_nobody_reads_breaks_nothing(model, monkeypatch):
    monkeypatch.setattr("sys.stderr", mock.Mock(**{"write.side_effect": BrokenPipeError}))
    assert TestClient(create_app({"m": model})).get("/health").status_code == 200


def test_metrics_count(model):
    client = TestClient(create_app({"m": model}))
    for texts in (["mara"], ["mara", "is"], []):
        client.post("/v1/embed", json={"texts": texts})
    told = client.get("/metrics").text
    for line in (
        'bertkit_requests_total{route="/v1/embed",status="200"} 2.0',
        'bertkit_requests_total{route="/v1/embed",status="422"} 1.0',
        'bertkit_request_seconds_count{route="/v1/embed"} 3.0',
        'bertkit_batch_texts_bucket{le="1.0",model="m"} 1.0',
        'bertkit_batch_texts_sum{model="m"} 3.0',
        'bertkit_queue_texts{model="m"} 0.0',
    ):
        assert line in told.splitlines()


@pytest.mark.filterwarnings("ignore")
def test_generated_requests_find_no_server_error(models):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis makes the requests")
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(models))
    for operation in schema.get_all_operations():

        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.ok().as_strategy())
        def send(case):
            assert case.call().status_code < 500

        send()


def test_an_empty_host_is_not_everybody(model):
    with pytest.raises(InputError, match="host is empty"):
        http.run(create_app({"m": model}), "", 0)
