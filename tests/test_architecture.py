"""The house rules that a reader relies on: who may import whom, and what stays free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "bertkit"
GROUND = {"__init__", "errors", "atomic", "progress", "models"}
MAY_USE = {  # folder or top-level file → what it may import besides itself and the ground floor
    "errors": set(),
    "atomic": set(),
    "progress": set(),
    "models": set(),
    "text": set(),
    "model": set(),
    "data": {"text", "model"},
    "tasks": {"text", "data", "model"},
    "train": {"text", "data", "model", "tasks"},
    "recipes": {"data", "model", "train"},
    "bundle": {"text", "data", "model", "tasks"},
    "serve": {"bundle", "text", "data", "model", "tasks"},
    "pipeline": {"text", "data", "model", "tasks", "train", "recipes", "bundle", "serve", "tuning", "distilling"},
    "demo": {"pipeline", "data", "train", "serve"},
    "exporting": {"data", "model", "tasks", "bundle", "serve"},
    "tuning": {"data", "model", "tasks", "train", "bundle"},
    "distilling": {"data", "model", "tasks", "train", "recipes", "bundle", "serve"},
    "console": {"data", "serve"},
    "asking": {"console", "serve", "data", "pipeline"},
    "cli": {"console", "asking", "pipeline", "demo", "data", "text", "train"},
    "__main__": {"cli"},
    "__init__": {"exporting", "model", "pipeline", "serve", "text"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def owner(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else file.stem


def imports(file: Path) -> set[str]:
    """Full names of every module a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file):
    me = owner(file)
    for name in imports(file):
        parts = name.split(".")
        if parts[0] == "bertkit":
            inside = len(parts) > 1 and ((PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists())
            used = parts[1] if inside else "__init__"
            assert used == me or used in GROUND or used in MAY_USE[me], f"{me} may not import {name}"


def test_data_uses_of_the_model_only_its_batch():
    for file in FILES:
        if owner(file) == "data":
            assert {n for n in imports(file) if n.startswith("bertkit.model")} <= {
                "bertkit.model.batch.Batch",
                "bertkit.model.batch.Bucket",
            }


def test_there_are_no_knots():
    edges = {(owner(file), name.split(".")[1]) for file in FILES for name in imports(file) if name.startswith("bertkit.")}
    folders = {file.parent.name for file in FILES if file.parent != PACKAGE}
    assert not [(a, b) for a, b in edges if a != b and (b, a) in edges and {a, b} <= folders]


# What must work where torch is not installed: text, and everything before the encoder and after the logits.
TORCH_FREE = [
    "bertkit",
    "bertkit.cli",
    "bertkit.errors",
    "bertkit.atomic",
    "bertkit.progress",
    "bertkit.pipeline",
    "bertkit.console",
    "bertkit.asking",
    "bertkit.tasks",
]
TORCH_FREE += [f"bertkit.text.{file.stem}" for file in FILES if owner(file) == "text" and file.stem != "__init__"]
NUMPY_ONLY = {"records", "readers", "windows", "sets", "check", "metrics"}  # file names, wherever they are
NUMPY_ONLY |= {"batch", "packing", "inputs", "answering", "folder", "exported", "families", "members", "int8"}
NUMPY_ONLY |= {"predictor", "files", "batching", "http", "guard", "prompting"}  # what answers where a model was exported
NUMPY_ONLY |= {"task", "classification", "tagging", "qa", "choice", "similarity"}
TORCH_FREE += [f"bertkit.{owner(file)}.{file.stem}" for file in FILES if file.stem in NUMPY_ONLY]
TORCH_FREE += [
    "bertkit.train.results",
    "bertkit.bundle.crc32c",
    "bertkit.bundle.google",
    "bertkit.bundle.hub",
    "bertkit.model.config",
]


def test_these_modules_import_no_torch():
    code = "import sys, importlib\nsys.modules['torch'] = None\n" + "".join(
        f"importlib.import_module({m!r})\n" for m in TORCH_FREE
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_asking_a_model_does_without_torch_s_compiler():
    """Its import would be half of the time to the first answer."""
    code = "import sys, bertkit\nbertkit.load(device='cpu').fill('A [MASK].')\nassert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_names_torch_nowhere():
    for file in FILES:
        if owner(file) == "text":
            assert not any(name.split(".")[0] in ("torch", "safetensors") for name in imports(file))


def test_no_pickle_and_no_vague_names():
    for file in FILES:
        assert not any(name.split(".")[0] in ("pickle", "dill", "joblib", "cloudpickle") for name in imports(file)), file
        assert file.stem not in ("utils", "util", "helpers", "common", "base", "misc", "core"), file


def test_public_names_resolve():
    import bertkit

    for name in bertkit.__all__:
        assert getattr(bertkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bertkit.nothing


def test_tests_mirror_the_package():
    words = "__init__ __main__ errors progress demo pipeline distilling hub families batch block console"
    covered = (
        "embeddings feedforward init fast classification choice answering network"  # by their users' tests
        " short tiles gelu added_norm turning in_place"  # by tests/model/test_kernels.py and test_cuda.py
        " changes"  # by tests/bundle/test_extend.py, test_lengthen.py, test_shrink.py
        " guard folder runner"  # by tests/serve/test_http.py, tests/bundle/test_bundle.py, tests/serve/test_predictor.py
        " positions longformer disentangled family"  # by tests/model/test_family.py and tests/tasks/test_objectives.py
    )
    untested = {*words.split(), *covered.split()}
    for file in FILES:
        if file.stem not in untested:
            folder = Path(__file__).parent / file.relative_to(PACKAGE).parent
            assert (folder / f"test_{file.stem}.py").exists(), f"{file} has no test file"
