"""Does bertkit predict survive kills? A run is killed with SIGKILL at random moments; no byte of the output may differ."""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from measure import arguments, report
from support.stories import stories

import bertkit
from bertkit.bundle.bundle import Bundle, save_bundle
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.task import TaskSettings

CODE = """
import ctypes, resource, sys, torch, bertkit
torch.set_num_threads(1)
facts = bertkit.predict(*sys.argv[1:], bad="skip", device="cpu")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
ctypes.CDLL(None).malloc_trim(0)  # what the allocator holds free is not in use
print(facts["rows"], facts["bad"], peak, int(open("/proc/self/statm").read().split()[1]) * 4 // 1024)
"""


def main() -> None:
    options = arguments(__doc__, rows=200_000, kills=3, seed=0)
    draw, rows = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder / "model")
        for name, size in (("a tenth", options.rows // 10), ("whole", options.rows)):
            make_file(folder / f"{size}.csv", size)
            begin = time.perf_counter()
            facts = finish(folder, size, name)
            seconds = time.perf_counter() - begin
            rows.append(dict(run=name, kills=0, seconds=seconds) | facts)
        kills = sum(kill(folder, options.rows, draw, seconds / (options.kills + 1)) for _ in range(options.kills))
        left = len(list((folder / "killed.csv.parts").glob("*.part")))
        facts = finish(folder, options.rows, "killed")
        rows.append(dict(run="killed", kills=kills, seconds="-") | facts)
        same = [read(folder, "killed", end) == read(folder, "whole", end) for end in ("", ".bad.jsonl")]
        for row in rows:
            row["equal to whole"] = all(same) if row["run"] == "killed" else "-"
    report(f"{options.rows:,} rows, killed {kills} times; {left} parts were there at the last start", rows)
    sys.exit(not (all(same) and kills == options.kills))


def make_model(folder: Path) -> None:
    words = sorted({word for text in stories(50) for word in text.lower().replace(".", " . ").replace(",", " , ").split()})
    tokenizer = bertkit.Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], cased=False)
    config = bertkit.sized("tiny", vocabulary=len(tokenizer), positions=64)
    torch.manual_seed(0)
    task = TASKS["classification"](TaskSettings(labels=("a", "b", "c"), max_length=64))
    save_bundle(Bundle(build_network(config, task), tokenizer, task=task), folder)


def make_file(path: Path, size: int) -> None:
    """Writes sentences of stories; one row in a thousand has too many cells."""
    sentences = [line for story in stories(2000) for line in story.split("\n")]
    with open(path, "w") as stream:
        stream.write("id,text\n")
        for number in range(size):
            stream.write(f'{number},"{sentences[number * 7 % len(sentences)]}"{",x" * (number % 1000 == 999)}\n')


def start(folder: Path, size: int, name: str) -> subprocess.Popen:
    command = [sys.executable, "-c", CODE, str(folder / "model"), str(folder / f"{size}.csv"), str(folder / f"{name}.csv")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})


def finish(folder: Path, size: int, name: str) -> dict[str, int]:
    child = start(folder, size, name)
    told = child.communicate()[0]
    assert child.returncode == 0
    return dict(zip(("rows", "bad", "peak MB", "in use at the end MB"), map(int, told.split()), strict=True))


def kill(folder: Path, size: int, draw: random.Random, most: float) -> bool:
    """Lets a run continue for a random time after its first new part, then kills it; returns whether it still ran."""
    parts = folder / "killed.csv.parts"
    before, child = len(list(parts.glob("*.part"))), start(folder, size, "killed")
    while len(list(parts.glob("*.part"))) == before and child.poll() is None:
        time.sleep(0.01)
    time.sleep(draw.random() * most)
    alive = child.poll() is None
    child.kill()
    child.communicate()
    return alive


def read(folder: Path, name: str, ending: str) -> bytes:
    return (folder / f"{name}.csv{ending}").read_bytes()


if __name__ == "__main__":
    main()
