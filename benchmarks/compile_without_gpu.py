"""Does a pre-training step compile for an H200 on a machine without a GPU, in what time and to how many kernels?

`python benchmarks/compile_without_gpu.py fast-base bert-base,precision=fp8`: recipes, each with settings after commas.
Forward and backward are traced with fake tensors, and all kernels are compiled for that GPU, but none runs;
TORCH_LOGS=output_code shows them. Needs a torch built for CUDA, and a C compiler. Queries to the driver get an H200's
answers; this was written for torch 2.11, and other versions may query more. Optimizations that time kernels are left out.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from measure import report

CHIP = dict(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32, total_memory=150_000_000_000)
CHIP |= dict(max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65_536)
CHIP |= dict(shared_memory_per_multiprocessor=233_472, shared_memory_per_block_optin=232_448, L2_cache_size=60 << 20)
RUNTIME = """
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetLastError(void) { return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; return 0; }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = (void *)8; return 0; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
"""
DRIVER = "int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }"


def main() -> None:
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | pretended(Path(folder))).returncode)
    pretend()
    report("a step compiled for an H200 that is not there", [compiled_step(words) for words in sys.argv[1:]])


def pretended(folder: Path) -> dict[str, str]:
    """Returns an environment in which CUDA's libraries find one device."""
    for source, library in ((RUNTIME, "runtime.so"), (DRIVER, "libcuda.so.1")):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / library)]
        subprocess.run(command, input=source, text=True, check=True)
    caches = dict(TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"), TRITON_CACHE_DIR=str(folder / "triton"))
    threads = dict(TORCHINDUCTOR_COMPILE_THREADS="1")  # worker processes would need a driver
    return dict(LD_PRELOAD=str(folder / "runtime.so"), LD_LIBRARY_PATH=str(folder)) | caches | threads


def pretend() -> None:
    """Makes the Python side of torch and Triton find an H200."""
    import torch._dynamo.device_interface
    import torch._functorch.config
    import torch._inductor.compile_fx
    import torch._inductor.runtime.triton_helpers
    import torch._inductor.runtime.triton_heuristics
    import torch._subclasses.fake_tensor
    import triton.runtime.driver
    from torch._inductor import config, output_code

    chip, driver, seed = SimpleNamespace(**CHIP), Driver(), torch.zeros(16, dtype=torch.uint8)
    said = dict(is_available=True, is_initialized=True, device_count=1, current_device=0, get_device_name=chip.name)
    said |= dict(get_device_properties=chip, _get_device_properties=chip, get_device_capability=(9, 0), _lazy_init=None)
    said |= dict(current_stream=SimpleNamespace(cuda_stream=0), get_rng_state=seed, set_rng_state=None, set_device=None)
    gpu = torch._dynamo.device_interface.CudaInterface
    for place in (torch.cuda, torch.cuda.random):
        answer(place, **said)
    answer(gpu, static=True, is_available=True, is_triton_capable=True, raise_if_triton_unavailable=None)
    answer(gpu, static=True, get_compute_capability=90, current_device=0, get_device_properties=chip)
    answer(gpu.Worker, static=True, current_device=0, get_device_properties=chip)
    answer(torch._C, _cuda_getCurrentRawStream=0)
    answer(torch._subclasses.fake_tensor, init_gpu_context=None)
    torch._C._ensureCUDADeviceGuardSet()
    torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init = True  # type: ignore[assignment, method-assign]
    triton.runtime.driver.set_active(driver)
    torch._inductor.runtime.triton_helpers.set_driver_to_gpu = lambda: triton.runtime.driver.set_active(driver)
    torch._inductor.runtime.triton_heuristics.CachingAutotuner._make_launchers = counted  # type: ignore[method-assign]
    output_code.CompiledFxGraph.__call__ = stop  # type: ignore[assignment, method-assign]
    config.joint_graph_constant_folding = config.shape_padding = False  # these run computations
    torch._functorch.config.force_non_lazy_backward_lowering = True


def answer(place: Any, *, static: bool = False, **said: Any) -> None:
    """Replaces functions of a module or class by ones that return these values for any arguments."""
    for name, value in said.items():
        function = lambda *_, value=value, **__: value  # noqa: E731 (one function for each)
        setattr(place, name, staticmethod(function) if static else function)


class Driver:
    """Triton's driver."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


class Compiled(Exception):
    """Raised when everything is compiled."""


def stop(*_: Any) -> None:
    raise Compiled


made = list[Any]()  # kernels, in all their variants


def counted(kernel: Any) -> None:
    made.extend(kernel.compile_results)
    kernel.launchers = [None]


def compiled_step(words: str) -> dict[str, Any]:
    """Compiles the step of a recipe with settings, given as one word, and returns a row of the table."""
    import torch
    from support.stores import made_up_store
    from torch._subclasses.fake_tensor import FakeTensorMode

    from bertkit.data.examples import ExampleSettings, ExampleSource
    from bertkit.model.device import autocast, compiled
    from bertkit.recipes import find_recipe
    from bertkit.tasks.objectives import JUDGED, OBJECTIVES
    from bertkit.train.recipe import change

    name, *settings = words.split(",")
    recipe = change(find_recipe(name), settings)
    length, tokens = recipe.phases[0].length, recipe.row_tokens or min(32_768, recipe.batch_tokens)
    with tempfile.TemporaryDirectory() as folder:
        store = made_up_store(Path(folder) / "store", 400, pieces=30_522)
        examples = ExampleSettings(pairs=recipe.pairs, length=length, masking=recipe.masking, causal=recipe.config.causal)
        source = ExampleSource(store, examples, seed=0, tokens=tokens, grids=recipe.config.needs_grids)
        row = source.batch(source.next_row(0)[0])
    config = recipe.config.with_(vocabulary=30_522, pooler=recipe.pairs != "none")
    told: Any = dict(generator=recipe.generator) if recipe.objective in JUDGED else dict(next_sentence=config.pooler)
    made.clear()
    torch._dynamo.reset()
    begun, device = time.monotonic(), torch.device("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, device, autocast(device, recipe.precision):
        network = OBJECTIVES[recipe.objective](config, **told).train()
        if recipe.precision == "fp8":
            from bertkit.model.eight import in_eight_bits

            in_eight_bits(network)
        try:
            compiled(network)(row.map(lambda tensor: mode.from_tensor(tensor).to(device)))
        except Compiled:
            seconds = round(time.monotonic() - begun, 1)
            return {"recipe": words, "length": length, "tokens": tokens, "kernels": len(made), "seconds": seconds}
    raise SystemExit(f"{words}: ran without being compiled")


if __name__ == "__main__":
    main()
