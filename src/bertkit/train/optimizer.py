"""The optimisers: AdamW as the paper used it, or Muon for the blocks' matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertkit.train.distributed import laid_like, whole
from bertkit.train.recipe import Optimizer


class Optimizers:
    """One or two optimisers over all parameters, stepped together; their state is a table of named tensors."""

    def __init__(
        self,
        network: nn.Module,
        settings: Optimizer,
        *,
        share: Callable[[str], float] = lambda name: 1.0,
        keep: bool = False,
    ):
        """`share` is what a parameter of a name gets of the learning rate; `keep` leaves gradients in their place."""
        self.keep = keep
        self.names: dict[Tensor, str] = {p: name for name, p in network.named_parameters() if p.requires_grad}
        matrices = [p for p, name in self.names.items() if p.ndim == 2 and ".blocks." in f".{name}"]
        by_muon = set(matrices) if settings.kind == "muon" else set()
        groups = dict[tuple[float, float], list[Tensor]]()
        for parameter, name in self.names.items():
            if parameter not in by_muon:
                decay = settings.weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((decay, share(name)), []).append(parameter)
        listed = [{"params": members, "weight_decay": decay, "share": one} for (decay, one), members in groups.items()]
        betas = (settings.beta1, settings.beta2)
        adam = torch.optim.AdamW(listed, lr=settings.lr, betas=betas, eps=settings.epsilon, fused=True)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [(adam, settings.lr)]
        if by_muon:
            shares = {share(self.names[matrix]) for matrix in matrices}
            listed = [
                {"params": [m for m in matrices if share(self.names[m]) == one], "share": one} for one in sorted(shares)
            ]
            muon = torch.optim.Muon(
                listed, lr=settings.muon_lr, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            self.parts.append((muon, settings.muon_lr))

    def clip(self, most: float) -> Tensor:
        """Shortens all gradients to a norm of `most` together; gives the norm they had. AdamW shortens them as it reads
        them, where it can: on a processor that is half of the time."""
        adam, gradients = self.parts[0][0], [p.grad for p in self.names if p.grad is not None]
        if len(self.parts) > 1 or any(gradient.is_cuda or type(gradient) is not Tensor for gradient in gradients):
            return whole(nn.utils.clip_grad_norm_(self.names, most))
        norm = nn.utils.get_total_norm(gradients)
        adam.grad_scale = (norm / most).clamp(min=1.0)  # type: ignore[attr-defined]
        return norm

    def step(self, factor: float) -> None:
        """One step at a share of the peak learning rates."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor * group.get("share", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not self.keep)

    def state(self) -> dict[str, Tensor]:
        """name of the value / name of the parameter → tensor."""
        return {
            f"{value}/{self.names[parameter]}": tensor
            for optimizer, _ in self.parts
            for parameter, values in optimizer.state.items()
            for value, tensor in values.items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        found = dict[str, dict[str, Tensor]]()
        for key, tensor in state.items():
            value, _, name = key.partition("/")
            found.setdefault(name, {})[value] = tensor
        for optimizer, _ in self.parts:
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                mine = found.get(self.names[parameter], {})
                optimizer.state[parameter] = {key: _place(key, tensor, parameter) for key, tensor in mine.items()}


def _place(key: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    """Moments lie as their parameter does; AdamW's count of steps is one number, and beside it only where it is fused."""
    if key == "step":
        return tensor.to(parameter.device) if parameter.is_cuda else tensor
    return laid_like(tensor, parameter)
