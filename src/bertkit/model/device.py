"""Devices: which exist, what they support, what a model needs of them, and compilation."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch._functorch.config
from torch import Tensor, nn

from bertkit.errors import InputError
from bertkit.model.config import Config

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROCESSOR_ROW = 8192  # tokens trained on at once on a CPU
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16 FLOP/s from the datasheets


def find_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" is CUDA if available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device {name!r}; expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} is not here; {torch.cuda.device_count()} CUDA devices were found")
    return device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Returns a context for matrix multiplications in the given precision; those not in fp8 (model/eight.py) are in bf16."""
    return torch.autocast(device.type, PRECISIONS.get(precision, torch.bfloat16), enabled=precision != "fp32")


def check_eight_bits(device: torch.device) -> None:
    """Raises InputError unless the device supports fp8 matrix multiplication."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        found = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        raise InputError(f"precision fp8 needs a GPU of compute capability 8.9 or more, found {found}; take precision=bf16")


def quick_precision(device: torch.device) -> str:
    """Returns bf16 where matrix multiplications are faster in it (CUDA, and CPUs with support for it), else fp32."""
    able: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16" if device.type == "cuda" or able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device; the copy overlaps with the device's work."""
    return tensor if tensor.device.type == device.type else tensor.pin_memory().to(device, non_blocking=True)


def fetched(tensor: Tensor) -> np.ndarray:
    """Returns the tensor as an fp32 array, through pinned memory; waits only for the work queued before it on its stream."""
    if tensor.device.type != "cuda":
        return tensor.float().cpu().numpy()
    there, done = tensor.float().to("cpu", non_blocking=True), torch.cuda.Event()
    done.record(torch.cuda.current_stream(tensor.device))
    done.synchronize()
    return there.numpy().copy()


def wants_grids(device: torch.device, precision: str, config: Config) -> bool:
    """Whether attention uses grids on the device; else a kernel reads the packed row (model/attention.py)."""
    return device.type != "cuda" or precision == "fp32" or config.needs_grids


def compiled(module: Callable) -> Any:
    """Compiles the module as one graph for each of a few fixed shapes.

    Inductor's mixed-order reductions fuse a layer norm's gradient with its column sums; with dropout beside it, such a
    kernel runs at a seventh of its speed (docs/lab-notes.md), so they are off. Positions that two distant dropouts hash are
    hashed again for the gradient, instead of keeping a mask. The recompile limit is for all models of a process together.
    The warning that the softmax of a loss takes two steps is hidden, as users cannot act on it.
    """
    from bertkit.model.in_place import InPlace  # imports the compiler

    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.ban_recompute_used_far_apart = False
    options: dict[str, Any] = {"triton.mix_order_reduction": False, "post_grad_custom_post_pass": InPlace()}
    return torch.compile(module, fullgraph=True, dynamic=False, options=options)


def twin(module: nn.Module) -> Any:
    """Returns a copy that shares the weights, whose submodules can be changed without affecting the original."""
    return deepcopy(module, {id(weight): weight for weight in module.parameters()})


def compile_parts(*parts: nn.Module) -> None:
    """Compiles each part in place, by itself: blocks are alike, so one compilation serves all of them."""
    for part in parts:
        part.forward = compiled(part.forward)


def flops_per_token(config: Config, length: int, masked: float) -> float:
    """Counts matrix multiplications, forward and backward: blocks, attention, and the head on its share of tokens."""
    block = 2 * (4 * config.width**2 + 2 * config.width * config.feedforward) + 4 * length * config.width
    head = 2 * (config.width**2 + config.width * config.vocabulary) * masked
    return 3 * (config.layers * block + head)


def tokens_at_once(device: torch.device, precision: str, config: Config) -> int:
    """Estimates how many tokens can be trained on at once, from the memory that BERT-base and large took: 29 bytes for each
    layer and value of a token's vector, and scores for one token in seven. More than 131,072 are not faster."""
    if wants_grids(device, precision, config):
        return 16_384 if device.type == "cuda" else PROCESSOR_ROW  # grids also keep scores
    memory, weights = torch.cuda.get_device_properties(device).total_memory, 18 * 12 * config.layers * config.width**2
    token = 34 * config.layers * config.width + 2 * config.vocabulary
    return max(512, min(131_072, int((0.85 * memory - weights) / token)))


def peak_flops(device: torch.device) -> float | None:
    """Returns the device's peak of dense bf16 FLOP/s, if known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for chip, peak in PEAK.items() if chip in name), None)
