"""How much of the offline throughput does the server keep under many clients, and is every answer right?

Over loopback only. Requests hold one to four texts of mixed lengths. Every answer is compared with the model's own, after
the measurement. The peer is FastAPI with a transformers pipeline, in the same run, with the same clients; for an exported
model, --peer names the model it was made of.
"""

import asyncio
import json
import multiprocessing
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Thread

import numpy as np
from measure import arguments, report
from support.stories import stories

import bertkit

ROUTES = ("embed", "embeddings", "similarity", "tokenize")


def make_texts(count: int) -> list[str]:
    """Returns texts of one to twelve sentences of the stories each."""
    draw, lines = random.Random(0), [line for story in stories(200) for line in story.replace("\n", " ").split(". ")]
    return [". ".join(draw.choices(lines, k=min(12, int(draw.expovariate(0.4)) + 1))) for _ in range(count)]


def make_requests(texts: list[str], routes: tuple[str, ...]) -> list[tuple[str, list[int], bytes]]:
    """Returns for each request the route, the indices of its texts, and its bytes on the wire."""
    draw, made = random.Random(1), []
    for _ in range(500):
        route, rows = draw.choice(routes), draw.sample(range(len(texts)), draw.choice((1, 1, 2, 4)))
        field = "input" if route == "embeddings" else "texts"
        body = json.dumps({field: [texts[row] for row in rows]}).encode()
        head = (
            f"POST /v1/{route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append((route, rows, head.encode() + body))
    return made


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return int(head.split()[1]), await reader.readexactly(size)


async def client(port: int, requests: list, number: int, until: float, replies: list) -> None:
    """Sends one request after the other on one connection, until the time is up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn = number * 37
    while (begin := time.perf_counter()) < until:
        request = requests[turn % len(requests)]
        status, body = await ask(reader, writer, request[2])
        replies.append((request, status, body, time.perf_counter() - begin))
        turn += 1
        if status == 429:
            await asyncio.sleep(0.05)
    writer.close()


async def load(port: int, requests: list, clients: int, seconds: float) -> list:
    replies: list = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, requests, number, until, replies) for number in range(clients)))
    return replies


def is_right(reply: tuple, near: float, vectors: np.ndarray, pieces: list[list[str]]) -> bool:
    (route, rows, _), _, body, _ = reply
    told, expected = json.loads(body), vectors[rows]
    if route == "tokenize":
        return [one["pieces"] for one in told["answers"]] == [pieces[row] for row in rows]
    found = [one["embedding"] for one in told["data"]] if route == "embeddings" else told["answers"]
    if route == "similarity":
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        expected = unit @ unit.T
    return np.shape(found) == expected.shape and np.allclose(found, expected, atol=near)


def measure(name: str, port: int, requests: list, clients: int, seconds: float, truth: tuple) -> dict:
    asyncio.run(load(port, requests, clients, 1.0))  # warm-up
    begin, used = time.perf_counter(), time.process_time()
    replies = asyncio.run(load(port, requests, clients, seconds))
    wall, used = time.perf_counter() - begin, time.process_time() - used
    good = [reply for reply in replies if reply[1] == 200]
    times, rate = [1000 * reply[3] for reply in good], sum(len(reply[0][1]) for reply in good) / wall
    statuses = Counter(reply[1] for reply in replies)
    return {
        "server": name,
        "clients": clients,
        "texts/s": rate,
        "of offline": "-",
        "p50 ms": float(np.percentile(times, 50)),
        "p99 ms": float(np.percentile(times, 99)),
        "statuses": " ".join(f"{status}×{count}" for status, count in sorted(statuses.items())),
        "wrong answers": sum(not is_right(reply, *truth) for reply in good),
        "clients' CPU": f"{used / wall:.0%} of a core",
    }


def measure_offline(model: bertkit.Model, texts: list[str], seconds: float) -> float:
    """Returns texts per second when all are given at once."""
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        model.embed(texts)
        done += len(texts)
    return done / (time.perf_counter() - begin)


def serve_peer(folder: str, port: int, unit: bool) -> None:
    """Serves as tutorials show it: a pipeline in a route."""
    import uvicorn
    from fastapi import Body, FastAPI
    from transformers import pipeline

    extract, app = pipeline("feature-extraction", model=folder, dtype="float32"), FastAPI()

    @app.post("/v1/embed")
    def embed(texts: list[str] = Body(embed=True)) -> dict:  # noqa: B008
        vectors = np.array([np.mean(extract(text)[0], axis=0) for text in texts])
        return {"answers": (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else vectors).tolist()}

    uvicorn.run(app, port=port, log_level="error")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not come up")


def memory(process: subprocess.Popen) -> int:
    """Returns the resident memory of a process in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def keep_watch(process: subprocess.Popen, held: list[int], pause: float) -> None:
    """Records the memory of a process, six times."""
    for _ in range(6):
        time.sleep(pause)
        held.append(memory(process))


def start(model: str, *options: str) -> tuple[subprocess.Popen, int]:
    port = free_port()
    command = [sys.executable, "-m", "bertkit", "serve", f"model={model}", "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(port)
    return process, port


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    process.wait()


def main() -> None:
    told = arguments(__doc__ or "", model="", peer="", clients=64, seconds=10.0, precision="fp32")
    if not told.model:
        return print("serve_load.py: skipped, needs --model: the folder of an encoder")
    model, texts = bertkit.load(told.model, precision=told.precision), make_texts(512)
    vectors = model.embed(texts)
    near = 1e-4 if told.precision == "fp32" else 0.02 * float(np.abs(vectors).max())  # bf16 rounds differently by batch
    truth = near, vectors, [[model.tokenizer.vocabulary[i] for i in one.ids] for one in model.tokenizer.encode_batch(texts)]
    same, mixed = make_requests(texts, ("embed",)), make_requests(texts, ROUTES)
    before = measure_offline(model, texts, told.seconds / 2)
    process, port = start(told.model, "--precision", told.precision)
    rows = [measure("bertkit, embed", port, same, told.clients, told.seconds, truth)]
    offline = (before + measure_offline(model, texts, told.seconds / 2)) / 2  # before and after, as a machine's speed drifts
    rows.append(measure("bertkit, four routes", port, mixed, told.clients, told.seconds, truth))
    stop(process)
    process, port = start(told.model, "--precision", told.precision, "--queue", str(told.clients))
    held = [memory(process)]
    watch = Thread(target=keep_watch, args=(process, held, told.seconds / 6))
    watch.start()
    rows.append(measure("bertkit, overload", port, same, 4 * told.clients, told.seconds, truth))
    watch.join()
    rows.append(measure("bertkit, recovered", port, same, told.clients // 2, told.seconds / 2, truth))
    stop(process)
    port, unit = free_port(), np.allclose(np.linalg.norm(vectors, axis=1), 1)  # as the model was fine-tuned
    peer = multiprocessing.get_context("spawn").Process(
        target=serve_peer, args=(told.peer or told.model, port, unit), daemon=True
    )
    peer.start()
    wait_for(port)
    rows.append(measure("FastAPI + pipeline, embed", port, same, told.clients, told.seconds, truth))
    peer.terminate()
    peer.join()
    for row in rows:
        row["of offline"] = "-" if "routes" in row["server"] else f"{row['texts/s'] / offline:.0%}"
    rows.insert(0, dict.fromkeys(rows[0], "-") | {"server": "offline, no server", "texts/s": offline})
    told.model, told.peer = Path(told.model).name, Path(told.peer).name
    sys.argv[1:] = [f"--{name}={value}" for name, value in vars(told).items()]
    report("Many clients against the offline model", rows)
    print(f"\nmemory of the overloaded server, MB, before and at each sixth of the time: {', '.join(map(str, held))}")


if __name__ == "__main__":
    main()
