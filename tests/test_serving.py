"""`bertkit serve` as a process: it answers, and a signal under load loses nothing that it accepted."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from support.stories import stories
from typer.testing import CliRunner

import bertkit
from bertkit.asking import _named
from bertkit.cli import app
from bertkit.errors import InputError, MissingExtra

TEXTS = [line for story in stories(30) for line in story.split("\n")][:50]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("serving") / "model"
    bertkit.create("tiny", tokenizer, seed=1, positions=64).save(path)
    return path


@pytest.fixture
def server(folder, tmp_path):
    """A process, its address, and the file of its log."""
    pytest.importorskip("bertkit.serve.http", reason="needs the extra serve")
    command = [sys.executable, "-m", "bertkit", "serve", f"m={folder}", "--port", "0", "--device", "cpu"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stderr=log)
    while not (lines := (tmp_path / "log").read_text().splitlines()):
        assert process.poll() is None
        time.sleep(0.05)
    yield process, urlsplit(json.loads(lines[0])["url"]).netloc, tmp_path / "log"
    process.kill()
    process.wait()


def post(address, text):
    """Status and answers of a request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(
            "POST", "/v1/fill", json.dumps({"texts": [text + " [MASK]"]}), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read()).get("answers")
    finally:
        connection.close()


def test_a_signal_under_load_loses_nothing_accepted(server, folder):
    process, address, log = server
    assert post(address, "mara is a")[0] == 200
    replies = []

    def ask_until_closed(number):
        for turn in range(100_000):
            text = TEXTS[(number * 7 + turn) % len(TEXTS)]
            try:
                replies.append((text, *post(address, text)))
            except OSError:  # the door is closed
                return turn
        raise AssertionError("still open")

    with ThreadPoolExecutor(16) as clients:
        turns = [clients.submit(ask_until_closed, number) for number in range(16)]
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert all(turn.result() > 0 for turn in turns)
    assert process.wait(20) == 0
    assert {status for _, status, _ in replies} <= {200, 503}
    logged = [json.loads(line).get("status") for line in log.read_text().splitlines()]
    assert set(logged) <= {None, 200, 503}
    assert logged.count(200) - 1 == sum(status == 200 for _, status, _ in replies)
    model = bertkit.load(folder, device="cpu")
    for text, status, found in replies[:: len(replies) // 100 + 1]:
        if status == 200:
            expected = [one.probability for one in model.fill(text + " [MASK]")[0]]
            assert [one["probability"] for one in found[0][0]] == pytest.approx(expected, abs=1e-5)


def test_help_has_an_example():
    assert "Example: bertkit serve" in CliRunner().invoke(app, ["serve", "--help"]).output


def serve(*arguments):
    return CliRunner().invoke(app, ["serve", *map(str, arguments), "--device", "cpu"]).exception


def test_refusals(folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = serve(folder, "--port", taken.getsockname()[1])
    assert isinstance(error, OSError)
    assert "in use" in str(error)
    error = serve(folder, folder)
    assert isinstance(error, InputError)
    assert "two models are named alike (model, model)" in str(error)
    monkeypatch.chdir(folder)
    assert _named(".") == ("model", ".")
    assert _named("mine=.") == ("mine", ".")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    error = serve(folder)
    assert isinstance(error, MissingExtra)
    assert "bertkit serve needs fastapi, which is not installed: pip install 'bertkit[serve]'" in str(error)
