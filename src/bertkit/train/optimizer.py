"""The optimisers: AdamW as the paper used it, or Muon for the blocks' matrices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.train.distributed import laid_like, whole
from bertkit.train.recipe import Optimizer

Share = Callable[[str], float]  # what the parameter of a name gets of the learning rate


def full(name: str) -> float:
    """The whole rate for all."""
    return 1.0


class Optimizers:
    """One or two optimisers over all parameters, stepped together; their state is a table of named tensors."""

    def __init__(self, network: nn.Module, settings: Optimizer, *, share: Share = full, keep: bool = False):
        """`keep` leaves gradients in their place."""
        self.keep = keep
        self.names: dict[Tensor, str] = {p: name for name, p in network.named_parameters() if p.requires_grad}
        groups = dict[tuple[str, float, float], list[Tensor]]()
        for parameter, name in self.names.items():
            matrix = parameter.ndim == 2 and ".blocks." in f".{name}"
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((settings.kind if matrix else "adamw", decay, share(name)), []).append(parameter)
        listed: dict[str, list[dict[str, Any]]] = {"adamw": [], "muon": []}
        for (kind, decay, one), members in groups.items():
            listed[kind].append({"params": members, "weight_decay": decay, "share": one})
        betas = (settings.beta1, settings.beta2)
        adam = torch.optim.AdamW(listed["adamw"], lr=settings.lr, betas=betas, eps=settings.epsilon, fused=True)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [(adam, settings.lr)]
        if listed["muon"]:
            self.parts.append((Muon(listed["muon"], adjust_lr_fn="match_rms_adamw"), settings.muon_lr))

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
        """optimizer / name of the value / name of the parameter → tensor."""
        states = [found for optimizer, _ in self.parts for found in optimizer.state.items()]
        return {f"optimizer/{value}/{self.names[one]}": t for one, values in states for value, t in values.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `state` told, of all tensors of a checkpoint."""
        found = dict[str, dict[str, Tensor]]()
        for key in (key for key in tensors if key.startswith("optimizer/")):
            _, value, name = key.split("/")
            found.setdefault(name, {})[value] = tensors[key]
        for optimizer, _ in self.parts:
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                mine = found.get(self.names[parameter], {})
                optimizer.state[parameter] = {key: _place(key, tensor, parameter) for key, tensor in mine.items()}


class Muon(torch.optim.Muon):
    """torch's, with all matrices of a shape in one product instead of one by one: fewer and larger ones."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike = dict[torch.Size, list[Tensor]]()
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in alike.items():
                momenta = self._momenta(parameters, group["momentum"])
                updates = orthogonal(momenta, group["ns_coefficients"], group["ns_steps"]).float()
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates.unbind(), alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)

    def _momenta(self, parameters: list[Tensor], momentum: float) -> Tensor:
        """Nesterov's [n, r, c]; the gradients are used up."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        kept = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(kept, gradients, 1 - momentum)
        torch._foreach_lerp_(gradients, kept, momentum)
        return torch.stack(gradients)


def orthogonal(x: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Every matrix of [n, r, c] with singular values near one, by Newton and Schulz in bf16 (Jordan, 2024)."""
    a, b, c = coefficients
    turned = x.shape[1] > x.shape[2]
    x = (x.mT if turned else x).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if turned else x


def _place(key: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    """Moments lie as their parameter does; AdamW's count of steps is one number beside it."""
    return tensor.to(parameter.device) if key == "step" else laid_like(tensor, parameter)
