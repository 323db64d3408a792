"""How good is a model? Fine-tunes it on every task whose files are there, and compares its dev scores with published ones.

`python benchmarks/glue.py MODEL`: small sets are run with three seeds, and the median counts; of several --rates, each set's
best on dev counts, as in the paper. Several runs share a GPU, preferably under NVIDIA's MPS; sets of short texts come first,
as small kernels queue behind large ones, then those of long texts, half as many at once. With --log, no run is repeated.
GLUE-6 is the mean of CoLA, SST-2, MRPC (F1), STS-B, QNLI and RTE.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import mean, median

from measure import data, report

from bertkit.data.sets import find_file
from bertkit.errors import DataError, InputError
from bertkit.train.recipe import Tuning, change

GLUE6 = ("glue/cola", "glue/sst2", "glue/mrpc", "glue/stsb", "glue/qnli", "glue/rte")
SMALL = ("glue/cola", "glue/mrpc", "glue/stsb", "glue/rte", "glue/wnli")  # with three seeds
OTHERS = ("glue/qqp", "glue/wnli", "boolq", "squad/v1", "squad/v2", "hellaswag", "conll2003")
LONGEST = ("squad/v1", "hellaswag", "squad/v2")
LONG = (*LONGEST, "boolq", "conll2003")  # these have long texts
SLOWEST = ("glue/qnli", "glue/sst2", *LONGEST)  # these start first, so that no long run is left for the end
BERT_BASE = {  # from the paper: on dev where given there, otherwise on test
    **{"glue/cola": 52.1, "glue/sst2": 92.7, "glue/mrpc": 86.7, "glue/stsb": 85.8, "glue/qnli": 88.4, "glue/rte": 66.4},
    **{"squad/v1": 88.5, "conll2003": 96.4},
}


def main() -> None:
    options = arguments()
    names = options.tasks.split(",") if options.tasks else [name for name in (*GLUE6, *OTHERS) if is_there(name)]
    report(f"{options.name or options.model} on dev", measured(names, options))


def is_there(name: str) -> bool:
    """Whether the dataset's training file is in the data folder."""
    with suppress(DataError):
        return bool(find_file(name, data() / "tasks", "train"))
    return False


def measured(names: Sequence[str], options: argparse.Namespace) -> list[dict]:
    """Returns a row for each set, and one for GLUE-6 if it is complete."""
    rates, by_size = options.rates.split(","), sorted(names, key=lambda name: (*SLOWEST, name).index(name))
    seeds = {name: range(options.seeds if name in SMALL else 1) for name in names}
    plans, runs = [(name, rate, seed) for name in by_size for rate in rates for seed in seeds[name]], logged(options)
    for late in (False, True):
        wave = [plan for plan in plans if (plan[0] in LONG) == late and plan not in runs]
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(max(1, options.at_once // (1 + late))) as pool:
            run = partial(tune, options=options, scratch=Path(scratch))
            runs |= zip(wave, pool.map(lambda plan, run=run: run(*plan), wave), strict=True)
    rows = [best_row(name, [runs[plan] for plan in plans if plan[0] == name]) for name in names]
    if set(GLUE6) <= set(names):
        score = mean(row["dev"] for row in rows if row["set"] in GLUE6)
        rows.append(dict.fromkeys(rows[0], "") | {"set": "GLUE-6", "figure": "mean", "dev": score, "BERT-base": 79.5})
    return rows


def logged(options: argparse.Namespace) -> dict[tuple[str, str, int], dict]:
    """Returns the runs in the log that are of this model, with these settings."""
    log = Path(options.log)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if options.log and log.exists() else []
    return {(row["set"], row["rate"], row["seed"]): row for row in rows if row["of"] == told_of(options)}


def told_of(options: argparse.Namespace) -> str:
    return " ".join([options.model, f"epochs={options.small_epochs},{options.long_epochs}", *options.tune])


def best_row(name: str, runs: list[dict]) -> dict:
    """Returns a set's row of the table, from its runs at the learning rate with the best median."""
    by_rate = defaultdict(list)
    for run in runs:
        by_rate[run["rate"]].append(run)
    mine = max(by_rate.values(), key=lambda some: median(run["score"] for run in some))
    scores = [run["score"] for run in mine]
    spread = f"{min(scores):.1f}–{max(scores):.1f}" if len(scores) > 1 else ""
    row = {"set": name, "figure": mine[0]["headline"], "dev": median(scores), "spread": spread, "rate": mine[0]["rate"]}
    return row | {"BERT-base": BERT_BASE.get(name, ""), "training s": round(sum(run["seconds"] for run in mine))}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--name", default="", help="the model's name in the table")
    parser.add_argument("--tasks", default="", help="comma-separated sets instead of all")
    return with_amounts(parser).parse_args()


def with_amounts(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", default="", help="comma-separated learning rates; by default the model's own")
    parser.add_argument("--small_epochs", type=int, default=0, help="for the small sets; 0 for the paper's three")
    parser.add_argument(
        "--long_epochs", type=int, default=0, help="for SQuAD and HellaSwag; 0 for the published three or two"
    )
    parser.add_argument("--at_once", type=int, default=6, help="runs that share the device")
    parser.add_argument("--log", default="", help="a file that collects finished runs; those in it are not repeated")
    parser.add_argument(
        "--tune", type=setting, action="append", default=[], help="a fine-tuning setting, such as layer_decay=0.85"
    )
    return parser


def setting(text: str) -> str:
    """Checks a setting here, so that a wrong one is not refused after minutes of pre-training."""
    try:
        change(Tuning(), [text])
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def tune(name: str, rate: str, seed: int, options: argparse.Namespace, scratch: Path) -> dict:
    """Runs the command once, and returns its headline metric on dev in percent."""
    out = scratch / f"{name.replace('/', '-')}-{rate}-{seed}"
    words = ["finetune", name, "--model", options.model, "--data-dir", str(data() / "tasks"), "--out", str(out)]
    epochs = options.small_epochs if name in SMALL else options.long_epochs if name in LONGEST else 0
    given = {"optimizer.lr": rate, "seed": seed or "", "epochs": epochs or ""}
    settings = [*(f"{name}={value}" for name, value in given.items() if value), *options.tune]
    words += [word for one in settings for word in ("--set", one)]
    done = subprocess.run([sys.executable, "-m", "bertkit", *words], capture_output=True, text=True)
    found = {"of": told_of(options), "set": name, "rate": rate, "seed": seed}
    if done.returncode:
        print(f"{name}, {rate}, seed {seed}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return found | {"score": float("-inf"), "headline": "failed", "seconds": 0.0}
    results = json.loads((out / "results.json").read_text())
    shutil.rmtree(out)  # a base model's run takes 2 GB
    headline = "f1" if name.startswith("squad") else next(iter(results["metrics"]))
    score = 100 * results["metrics"][headline]
    print(f"{name}, {rate}, seed {seed}: {headline} {score:.2f}, {results['seconds']:.0f} s", flush=True)
    found |= {"score": score, "headline": headline, "seconds": results["seconds"]}
    if options.log:
        with open(options.log, "a") as log:
            log.write(json.dumps(found) + "\n")
    return found


if __name__ == "__main__":
    main()
