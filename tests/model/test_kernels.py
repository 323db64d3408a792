"""What our Triton kernels compute, seen without a GPU; how they do on one is tested in test_cuda.py."""

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "interpreted.py"
CHECKS = [*(f"{kind}, {kernel}" for kind in ("attention", "dropped attention") for kernel in ("short", "tiles"))]
CHECKS += ["gelu", "added norm", "norm", "turning", "sums in place"]


def release(package):
    return tuple(map(int, version(package).split(".")[:2]))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which is for Linux")
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_compute_what_plain_torch_does(check, monkeypatch):
    if release("triton") < (3, 7) and release("numpy") >= (2, 4):
        pytest.skip("Triton's interpreter needs version 3.7 to read numbers of numpy 2.4")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = subprocess.run([sys.executable, SCRIPT, check], capture_output=True, text=True)
    assert not done.returncode, done.stderr
