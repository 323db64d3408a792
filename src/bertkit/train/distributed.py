"""Many processes, one run: torchrun's environment, data-parallel gradients, and sums over ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, the same on each."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, flag: bool, device: torch.device) -> bool:
        """True on all ranks if it is on any."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def spread(self, network: nn.Module, device: torch.device) -> nn.Module:
        """The network with gradients averaged over ranks."""
        if self.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network, [device] if device.type == "cuda" else None)


@contextmanager
def join_world(device: torch.device) -> Iterator[tuple[World, torch.device]]:
    """The world that torchrun describes in the environment, or a world of one; and this process's device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(), device
        return
    world = World(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield world, device
    finally:
        dist.destroy_process_group()
