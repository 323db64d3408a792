"""How fast does a CPU turn texts into vectors? bertkit compared with transformers, ONNX Runtime, OpenVINO and others.

Text in, mean-pooled vectors out, tokenization included, on the same real sentences and paragraphs of up to 150 words.
Systems take turns, and the best of several rounds counts: other work on the machine affects all of them alike, and CPU time
not at all. Peers that take batches get texts sorted by length, in the best of three batch sizes.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import torch
import transformers
from measure import arguments, data, minilm, mixed_texts, report, sentences
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from sentence_transformers import SentenceTransformer

import bertkit
from bertkit.models import DEFAULT, OWN
from bertkit.tasks.metrics import spearman

LENGTH = 512
Embed = Callable[[list[str]], np.ndarray]


def main() -> None:
    options = arguments(__doc__, texts=400, rounds=3, singles=200, base=120, sizes="small,MiniLM,base")
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(cores())
    peers = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "openvino", "sentence-transformers"))
    print(f"instructions: {instructions()}; {peers}")
    with tempfile.TemporaryDirectory() as folder:
        if "small" in options.sizes:
            measure(DEFAULT, OWN / DEFAULT, Path(folder) / "small", options.texts, options)
        if "MiniLM" in options.sizes:
            measure("all-MiniLM-L6-v2", minilm(), Path(folder) / "minilm", options.texts, options)
        if "base" in options.sizes:
            measure("BERT-base, random weights", make_base(Path(folder)), Path(folder) / "base", options.base, options)


def measure(title: str, model: Path, folder: Path, count: int, options) -> None:
    folder.mkdir()
    texts, short = mixed_texts(count), sentences()[: options.singles]
    systems = make_systems(model, folder, texts[: max(24, count // 4)])
    times: dict[str, list[float]] = {name: [] for name in systems}
    spent: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(options.rounds):
        for name, embed in systems.items():
            begin, before = time.perf_counter(), time.process_time()
            embed(texts)
            times[name].append(time.perf_counter() - begin)
            spent[name].append(time.process_time() - before)
        print(f"{title}: round {turn + 1} of {options.rounds}", file=sys.stderr)
    pipeline = min(times["transformers pipeline"])
    pairs = similar() if title.startswith("all") else None
    rows = []
    for name, embed in systems.items():
        single = latencies(embed, short)
        row = {"system": name, "texts/s": count / min(times[name]), "of the pipeline": pipeline / min(times[name])}
        row["core ms a text"] = 1000 * min(spent[name]) / count
        row |= {"p50 ms": float(np.percentile(single, 50)), "p99 ms": float(np.percentile(single, 99))}
        rows.append(row | ({"STS-B spearman": f"{quality(embed, pairs):.4f}"} if pairs else {}))
    pieces = sum(map(len, bertkit.Tokenizer.load(model).encode_batch(texts, max_length=LENGTH)))
    report(f"{title}: {count} texts, {pieces:,} pieces", rows)


def make_systems(model: Path, folder: Path, some: list[str]) -> dict[str, Embed]:
    """Returns a function for each system that embeds texts."""
    theirs = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, model_max_length=LENGTH)
    pipeline = transformers.pipeline("feature-extraction", model=theirs, tokenizer=tokenizer, device="cpu")
    sbert = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": torch.float32})
    sbert.max_seq_length = LENGTH
    export_theirs(theirs, folder / "theirs.onnx", tokenizer, some)

    @torch.inference_mode()
    def forward(grid: dict) -> np.ndarray:
        return theirs(**{name: torch.from_numpy(values) for name, values in grid.items()})[0].numpy()

    def one_by_one(texts: list[str]) -> np.ndarray:
        return np.stack([found[0].mean(0).numpy() for found in pipeline(texts, return_tensors=True)])

    ours, int8 = folder / "ours", folder / "int8"
    bertkit.export(model, ours)
    bertkit.export(model, int8, int8=True)
    return {
        "transformers pipeline": one_by_one,
        "transformers, sorted batches": best(tokenizer, forward, some),
        "sentence-transformers": lambda texts: sbert.encode(texts, normalize_embeddings=False, show_progress_bar=False),
        "ONNX Runtime fp32": best(tokenizer, runtime(folder / "theirs.onnx"), some),
        "OpenVINO fp32": best(tokenizer, vino(folder / "theirs.onnx", "f32"), some),
        "OpenVINO bf16 (its default)": best(tokenizer, vino(folder / "theirs.onnx", "bf16"), some),
        "bertkit, torch": asked(model),
        "bertkit, torch, bf16": asked(model, precision="bf16"),
        "bertkit, exported": asked(ours),
        "ONNX Runtime int8, dynamic": best(tokenizer, runtime(folder / "theirs-dynamic.onnx"), some),
        "ONNX Runtime int8, static": best(tokenizer, runtime(folder / "theirs-static.onnx"), some),
        "OpenVINO int8, static": best(tokenizer, vino(folder / "theirs-static.onnx", "f32"), some),
        "bertkit, exported int8": asked(int8),
    }


def asked(model: Path, **how: Any) -> Embed:
    loaded = bertkit.load(model, **how)
    return lambda texts: loaded.embed(texts, pooling="mean", normalize=False)


def best(tokenizer, forward: Callable[[dict], np.ndarray], some: list[str]) -> Embed:
    """Returns a function that embeds texts in batches sorted by length, in the fastest of three batch sizes."""

    def embed(texts: list[str], size: int) -> np.ndarray:
        encoded = tokenizer(texts, truncation=True, max_length=LENGTH)
        order = sorted(range(len(texts)), key=lambda index: len(encoded["input_ids"][index]))
        vectors: list = [None] * len(texts)
        for begin in range(0, len(order), size):
            members = order[begin : begin + size]
            rows = {name: [values[index] for index in members] for name, values in encoded.items()}
            grid = dict(tokenizer.pad(rows, return_tensors="np"))
            states, mask = forward(grid), grid["attention_mask"][..., None]
            for index, vector in zip(members, (states * mask).sum(1) / mask.sum(1), strict=True):
                vectors[index] = vector
        return np.stack(vectors)

    seconds = {}
    for size in (1, 8, 32):
        begin = time.perf_counter()
        embed(some, size)
        seconds[size] = time.perf_counter() - begin
    chosen = min(seconds, key=lambda size: seconds[size])
    return lambda texts: embed(texts, chosen)


def runtime(file: Path) -> Callable[[dict], np.ndarray]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = cores(), 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as in bertkit
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    return lambda grid: session.run(None, grid)[0]


def vino(file: Path, precision: str) -> Callable[[dict], np.ndarray]:
    core = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": cores(), "PERFORMANCE_HINT": "LATENCY"}
    model = core.compile_model(core.read_model(str(file)), "CPU", hints)
    return lambda grid: next(iter(model(grid).values()))


class Wrapped(torch.nn.Module):
    def __init__(self, model, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


class Calibration(CalibrationDataReader):
    def __init__(self, tokenizer, texts: list[str]):
        self.grids = (dict(tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="np")) for text in texts)

    def get_next(self):
        return next(self.grids, None)


def export_theirs(model, file: Path, tokenizer, some: list[str]) -> None:
    """Exports transformers' model the usual way, and quantizes it to int8 in the two usual ways."""
    names = list(tokenizer("x"))
    plain = type(model)._from_config(model.config, attn_implementation="eager").eval()
    plain.load_state_dict(model.state_dict())
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "states")}
    grid = torch.ones(2, 8, dtype=torch.long)
    options: dict[str, Any] = dict(
        input_names=names, output_names=["states"], dynamic_axes=axes, opset_version=17, dynamo=False
    )
    torch.onnx.export(Wrapped(plain, names), (grid,) * len(names), str(file), **options)
    only = {"MatMulConstBOnly": True}
    dynamic, static = file.with_stem("theirs-dynamic"), file.with_stem("theirs-static")
    quantize_dynamic(file, dynamic, per_channel=True, weight_type=QuantType.QInt8, extra_options=only)
    ready = file.with_stem("theirs-ready")
    quant_pre_process(str(file), str(ready), skip_symbolic_shape=True)
    how = dict(quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    maps = dict(per_channel=True, op_types_to_quantize=["MatMul"], extra_options=only)
    quantize_static(str(ready), str(static), Calibration(tokenizer, some[:32]), **how, **maps)


def latencies(embed: Embed, texts: list[str]) -> list[float]:
    """Returns the milliseconds for each short text, one at a time."""
    found = []
    for text in texts:
        begin = time.perf_counter()
        embed([text])
        found.append(1000 * (time.perf_counter() - begin))
    return found


def quality(embed: Embed, pairs: tuple[list[str], list[str], list[float]]) -> float:
    first, second = (embed(side) for side in pairs[:2])
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return spearman(pairs[2], (first * second).sum(1) / norms)


def similar() -> tuple[list[str], list[str], list[float]]:
    head, *rows = [line.split("\t") for line in (data() / "tasks/STS-B/dev.tsv").read_text().splitlines()][:301]
    first, second, score = (head.index(name) for name in ("sentence1", "sentence2", "score"))
    return [row[first] for row in rows], [row[second] for row in rows], [float(row[score]) for row in rows]


def make_base(folder: Path) -> Path:
    bertkit.create("base", bertkit.Tokenizer.load(minilm())).save(folder / "model")
    return folder / "model"


def cores() -> int:
    return torch.multiprocessing.cpu_count()


def instructions() -> str:
    known = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
    found = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    return ", ".join(name for name in known if name in found)


if __name__ == "__main__":
    main()
