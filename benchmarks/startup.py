"""How long does training take to start? Seconds from the command to the first step and to a later one, for pre-training and
fine-tuning, with the compiler's caches empty and then as the first run left them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import arguments, data, report

LATER = 30
SETTINGS = {"pretrain": ("log_every=1", "steps=1000", "phases=128:1", "evaluate_every=10000"), "finetune": ("log_every=1",)}


def main() -> None:
    options = arguments(__doc__, store="", recipe="bert-base", model="bertkit-en-small", workers=4)
    with tempfile.TemporaryDirectory() as scratch:
        out = ["--out", f"{scratch}/run"]
        words = {"finetune": ["glue/mrpc", "--model", options.model, "--data-dir", str(data() / "tasks"), *out]}
        if options.store:
            words["pretrain"] = [options.store, "--recipe", options.recipe, "--workers", str(options.workers), *out]
        rows = []
        for verb, given in words.items():
            changes = [word for one in SETTINGS[verb] for word in ("--set", one)]
            for caches in ("empty", "filled"):
                seconds = timed([sys.executable, "-m", "bertkit", verb, *given, *changes], Path(scratch) / verb)
                rows.append({"command": f"bertkit {verb}", "caches": caches} | seconds)
                print(rows[-1], flush=True)
                shutil.rmtree(f"{scratch}/run")
    report(f"From the command to the first step, and to step {LATER}", rows)


def timed(words: list[str], caches: Path) -> dict[str, float]:
    """Runs the command until it has printed LATER steps, then kills it and all its child processes."""
    places = dict(TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"), TRITON_CACHE_DIR=str(caches / "triton"))
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begun, lines, times = time.monotonic(), [], []
    with subprocess.Popen(words, env=os.environ | places, start_new_session=True, **pipes) as command:
        for line in command.stdout or ():
            lines.append(line)
            times += [time.monotonic() - begun] * line.startswith("step ")
            if len(times) == LATER:
                os.killpg(command.pid, signal.SIGKILL)
                return {"first step, s": times[0], f"step {LATER}, s": times[-1]}
    raise SystemExit("".join(lines[-3:]))


if __name__ == "__main__":
    main()
