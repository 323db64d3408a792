"""The optimisers: AdamW as in the paper, or Muon for the blocks' matrices.

torch.optim's classes are not used: on the first step they import torch's compiler, which takes a second or two, and most
runs compile nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from bertkit.train.distributed import laid_like, whole
from bertkit.train.recipe import Optimizer

Share = Callable[[str], float]  # parameter name → its factor of the learning rate
# Muon (Jordan, 2024): the momentum, and the polynomial whose iteration brings singular values near one.
MOMENTUM, COEFFICIENTS, STEPS = 0.95, (3.4445, -4.775, 2.0315), 5


def full(name: str) -> float:
    """The full learning rate for every parameter."""
    return 1.0


class Alike(NamedTuple):
    """What the parameters of a group have in common."""

    kind: str
    decay: float
    share: float


class Optimizers:
    """Updates all parameters; the state of each is a dict of named tensors."""

    def __init__(self, network: nn.Module, settings: Optimizer, *, share: Share = full):
        self.settings = settings
        self.names: dict[Tensor, str] = {p: name for name, p in network.named_parameters() if p.requires_grad}
        self.groups = defaultdict[Alike, list[Tensor]](list)
        for parameter, name in self.names.items():
            matrix = parameter.ndim == 2 and ".blocks." in f".{name}"
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            self.groups[Alike(settings.kind if matrix else "adamw", decay, share(name))].append(parameter)
        self.memory = defaultdict[Tensor, dict[str, Tensor]](dict)
        self.excess: Tensor | None = None  # AdamW divides gradients by it as it reads them

    def clip(self, most: float) -> Tensor:
        """Clips all gradients to a joint norm of `most`; returns the norm before. If all are for AdamW on the CPU, it scales
        them as it reads them, which saves a pass over them: half of the time."""
        gradients, kinds = _gradients(self.names), {alike.kind for alike in self.groups}
        if kinds != {"adamw"} or any(gradient.is_cuda or type(gradient) is not Tensor for gradient in gradients):
            return whole(nn.utils.clip_grad_norm_(self.names, most))
        norm = nn.utils.get_total_norm(gradients)
        self.excess = (norm / most).clamp(min=1.0)
        return norm

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Makes one step at `factor` times the peak learning rates, and clears the gradients."""
        for alike, parameters in self.groups.items():
            if moved := [parameter for parameter in parameters if parameter.grad is not None]:
                (self._muon if alike.kind == "muon" else self._adamw)(moved, alike.decay, factor * alike.share)
        for parameter in self.names:
            parameter.grad = None

    def _adamw(self, parameters: list[Tensor], decay: float, factor: float) -> None:
        chosen, kept = self.settings, [self._kept(parameter, "exp_avg", "exp_avg_sq", "step") for parameter in parameters]
        first, second, steps = map(list, zip(*kept, strict=True))
        adamw(
            parameters, _gradients(parameters), first, second, [], steps,
            lr=chosen.lr * factor, beta1=chosen.beta1, beta2=chosen.beta2, eps=chosen.epsilon, weight_decay=decay,
            grad_scale=self.excess, fused=True, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _muon(self, parameters: list[Tensor], decay: float, factor: float) -> None:
        """Stacks all matrices of one shape, for fewer and larger matrix multiplications."""
        rate, alike = self.settings.muon_lr * factor, defaultdict[torch.Size, list[Tensor]](list)
        for parameter in parameters:
            alike[parameter.shape].append(parameter)
        for shape, matrices in alike.items():
            updates = orthogonal(self._momenta(matrices)).float()
            torch._foreach_mul_(matrices, 1 - rate * decay)
            torch._foreach_add_(matrices, updates.unbind(), alpha=-rate * 0.2 * max(shape) ** 0.5)

    def _momenta(self, parameters: list[Tensor]) -> Tensor:
        """Returns the Nesterov momenta [n, r, c]; overwrites the gradients."""
        gradients, kept = _gradients(parameters), [one for p in parameters for one in self._kept(p, "momentum_buffer")]
        torch._foreach_lerp_(kept, gradients, 1 - MOMENTUM)
        torch._foreach_lerp_(gradients, kept, MOMENTUM)
        return torch.stack(gradients)

    def _kept(self, parameter: Tensor, *names: str) -> list[Tensor]:
        """Returns a parameter's state tensors, zero at first. The step count is a scalar."""
        mine = self.memory[parameter]
        for name in names:
            if name not in mine:
                mine[name] = torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)
        return [mine[name] for name in names]

    def state(self) -> dict[str, Tensor]:
        """Returns a dict from optimizer/NAME of the value/NAME of the parameter to the tensor."""
        named = [(self.names[parameter], kept) for parameter, kept in self.memory.items()]
        return {f"optimizer/{key}/{name}": tensor for name, kept in named for key, tensor in kept.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `state` returned from all tensors of a checkpoint."""
        named = {name: parameter for parameter, name in self.names.items()}
        for key in (key for key in tensors if key.startswith("optimizer/")):
            _, value, name = key.split("/")
            if (like := named.get(name)) is not None:
                tensor = tensors[key]
                self.memory[like][value] = tensor.to(like.device) if value == "step" else laid_like(tensor, like)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def orthogonal(x: Tensor) -> Tensor:
    """Returns every matrix of [n, r, c] with singular values near one, by Newton-Schulz iteration in bf16."""
    a, b, c = COEFFICIENTS
    turned = x.shape[1] > x.shape[2]
    x = (x.mT if turned else x).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if turned else x
