"""The optimisers: AdamW as the paper used it, or Muon for the blocks' matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.train.distributed import laid_like
from bertkit.train.recipe import Optimizer


class Optimizers:
    """One or two optimisers over all parameters, stepped together; their state is a table of named tensors."""

    def __init__(self, network: nn.Module, settings: Optimizer, *, fused: bool):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
        matrices = [p for p, name in self.names.items() if p.ndim == 2 and ".blocks." in f".{name}"]
        by_muon = set(matrices) if settings.kind == "muon" else set()
        rest = [parameter for parameter in self.names if parameter not in by_muon]
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        ]
        betas = (settings.beta1, settings.beta2)
        adam = torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.epsilon, fused=fused)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [(adam, settings.lr)]
        if by_muon:
            muon = torch.optim.Muon(
                matrices, lr=settings.muon_lr, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            self.parts.append((muon, settings.muon_lr))

    def step(self, factor: float) -> None:
        """One step at a share of the peak learning rates."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """name of the value / name of the parameter → tensor."""
        return {
            f"{value}/{self.names[parameter]}": tensor
            for optimizer, _ in self.parts
            for parameter, values in optimizer.state.items()
            for value, tensor in values.items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        for optimizer, _ in self.parts:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    mine = {
                        key.partition("/")[0]: t
                        for key, t in state.items()
                        if key.partition("/")[2] == self.names[parameter]
                    }
                    if mine:
                        optimizer.state[parameter] = {key: _place(key, tensor, parameter) for key, tensor in mine.items()}


def _place(key: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    """Moments lie as their parameter does; AdamW's count of steps is one number, and beside it only where it is fused."""
    if key == "step":
        return tensor.to(parameter.device) if parameter.is_cuda else tensor
    return laid_like(tensor, parameter)
