"""Many processes, one run: torchrun's environment, data-parallel gradients, sharded models, and sums over ranks.

torch's sharding modules take two seconds to import, so only sharding imports them; shards are recognised by their methods.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group exists: its default arguments would keep one alive
from torch import Tensor, nn

from bertkit.model.device import compile_parts, compiled


@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum over all ranks, the same on each."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, flag: bool, device: torch.device) -> bool:
        """Returns True on all ranks if the flag is true on any."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def gather(self, text: str) -> list[str]:
        """Returns every rank's text, in the order of ranks."""
        texts = [text] * self.size
        if self.size > 1:
            dist.all_gather_object(texts, text)
        return texts

    def spread(self, network: nn.Module, device: torch.device, *, compile: bool, shard: bool) -> nn.Module:
        """Returns the network, compiled if asked, with gradients averaged over ranks; sharded, each rank holds a part."""
        if shard and self.size > 1:
            return _sharded(network, device, compile)
        network = compiled(network) if compile else network
        if self.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network, [device] if device.type == "cuda" else None)


_meshes = list[Any]()  # of sharded models, until the process group is destroyed


def _sharded(network: nn.Module, device: torch.device, compile: bool) -> nn.Module:
    """FSDP2: weights, gradients and moments are sharded over ranks; a block is gathered when it is computed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    _meshes.append(mesh)
    for blocks in (module for module in network.modules() if isinstance(module, nn.ModuleList)):
        if compile:
            compile_parts(*blocks)
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


def synced(network: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Returns a context for a row's gradients: ranks exchange them once per step, with the last row."""
    if hasattr(network, "set_requires_gradient_sync"):  # FSDP2's
        network.set_requires_gradient_sync(last)  # type: ignore[operator]
    if isinstance(network, nn.parallel.DistributedDataParallel) and not last:
        return network.no_sync()
    return nullcontext()


def is_shard(tensor: Any) -> bool:
    return hasattr(tensor, "to_local")


def whole(tensor: Any) -> Tensor:
    """Returns a sharded tensor whole, on every rank; all ranks must call it."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def laid_like(tensor: Tensor, other: Any) -> Tensor:
    """Returns a whole tensor on the device of `other`, sharded as `other` is."""
    if not is_shard(other):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@contextmanager
def join_world(device: torch.device) -> Iterator[tuple[World, torch.device]]:
    """Yields the world that torchrun describes in the environment, or a world of one; and this process's device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(), device
        return
    world = World(int(os.environ["RANK"]), size)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield world, device
    finally:
        _leave()


def _leave() -> None:
    """Destroys the group and gloo's threads with it: a thread that frees a tensor while Python exits aborts the process.
    Sharded models keep a group alive by their reference cycles, and so do their meshes, which torch caches."""
    dist.destroy_process_group()
    while _meshes:
        getattr(_meshes.pop(), "_pg_registry", {}).clear()
    gc.collect()
