"""ZeRO by hand: data parallelism in which a rank stops holding what it does not need at the moment.

    stage 0   everything on every rank; gradients are all-reduced before the step
    stage 1   optimizer state and master weights divided by k: gradients are reduce-scattered, each rank updates its
              part, the new parameters are gathered
    stage 2   gradients divided too: reduced as soon as backward has made them, then freed
    stage 3   parameters divided too: gathered before a unit is used, in forward and in backward, then freed

A *unit* is what travels in one message: the parameters of a layer end to end, padded until k divides them. This rank
owns the rank-th of its k equal parts, the *shard*.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (2020). Every
method is called by all ranks of the default process group, in the same order.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves


def gather(whole: torch.Tensor, shard: torch.Tensor) -> None:
    """Fill `whole` with the shards of all ranks."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, shard)


def reduce_scatter(shard: torch.Tensor, whole: torch.Tensor) -> None:
    """Fill `shard` with this rank's part of the sum of `whole` over ranks. On gloo this sends as much as an
    all-reduce; a ring sends half.
    """
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, whole)


class Unit:
    """Parameters of one layer as views of one flat tensor, `whole`."""

    def __init__(self, parameters: list[nn.Parameter], *, trains: bool) -> None:
        if len({p.dtype for p in parameters}) > 1:
            raise ValueError("the parameters of a unit must have one dtype: convert the model, or split the unit")
        k, n = dist.get_world_size(), sum(p.numel() for p in parameters)
        self.parameters, self.trains, self.size = parameters, trains, -(-n // k)
        self.padding = k * self.size - n
        self.whole = parameters[0].new_zeros(k * self.size)
        for parameter, place in zip(parameters, self.views(self.whole), strict=True):
            place.copy_(parameter.detach())
            parameter.data = place
        self.shard = self.own(self.whole)
        self.gradient: torch.Tensor | None = None  # whole, or the shard's
        self.waiting = 0  # gradients that this backward has still to bring

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [p.numel() for p in self.parameters]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[dist.get_rank() * self.size :][: self.size]

    def free(self) -> None:
        """Give the memory of `whole` back; the parameters keep their place in it."""
        self.whole.untyped_storage().resize_(0)

    def fetch(self) -> None:
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.numel() * self.whole.element_size())
            gather(self.whole, self.shard)


class Zero:
    """Trains `model` under one of the four stages: `backward(loss)` for each micro-batch, then `step()`.

    optimizer       makes one of a list of tensors, such as `lambda p: torch.optim.AdamW(p, lr=1e-3)`
    layers          the modules that become units; what is left of the model is a unit of its own
    master_dtype    mixed precision: the dtype of the copy that the optimizer updates, None for the parameters' own
    max_norm        clip by the norm of the whole gradient
    reduce_scatter  by default torch's own; give a ring to send the (k-1)/k that the algorithm needs

    Gradients are averaged over ranks and summed over the micro-batches of a step: divide each loss by their number.
    Every rank must use the same layers in a step, in the same order. Built in lesson 08.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stage: int,
        optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
        layers: Iterable[nn.Module] = (),
        master_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        reduce_scatter: Callable[[torch.Tensor, torch.Tensor], None] = reduce_scatter,
    ) -> None:
        self.stage, self.max_norm, self.reduce_scatter = stage, max_norm, reduce_scatter
        self.units: list[Unit] = []
        self.in_backward = False
        owned: dict[nn.Module, list[Unit]] = {}
        for module, parameters in divided(model, layers):
            units = [Unit(part, trains=trains) for trains in (True, False) if (part := of_kind(parameters, trains))]
            owned[module] = units
            self.units += units
        for unit in self.units:
            if stage == 3:
                unit.shard = unit.shard.clone()
            kept = unit.whole if stage == 0 else unit.shard
            unit.master = kept if master_dtype in (None, kept.dtype) else kept.to(master_dtype)
        self.trained = [unit for unit in self.units if unit.trains]
        self.optimizer = optimizer([unit.master for unit in self.trained])
        if stage < 2:
            for unit in self.trained:  # autograd adds to what is there: one flat gradient a unit, and no copies
                unit.gradient = torch.zeros_like(unit.whole)
                for parameter, place in zip(unit.parameters, unit.views(unit.gradient), strict=True):
                    parameter.grad = place
        else:
            for unit in self.trained:
                for parameter in unit.parameters:
                    parameter.register_post_accumulate_grad_hook(lambda _, unit=unit: self._came(unit))
        if stage == 3:
            for module, units in owned.items():
                module.register_forward_pre_hook(lambda *_, units=units: self._fetch(units))
                module.register_forward_hook(lambda _, __, output, units=units: self._used(units, output))
            self._free(self.units)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of one micro-batch."""
        for unit in self.trained:
            unit.waiting = len(unit.parameters)
        self.in_backward = True
        loss.backward()
        self.in_backward = False
        if self.stage >= 2:
            for unit in self.trained:
                if unit.waiting:  # a parameter that the loss does not depend on: its gradient is 0
                    self._reduce(unit)
        if self.stage == 3:
            self._free(self.units)

    def step(self) -> None:
        """Update the parameters and clear the gradients."""
        k = dist.get_world_size()
        gradients = []
        for unit in self.trained:
            if self.stage == 0:
                dist.all_reduce(unit.gradient)
                gradients.append(unit.gradient)
            elif self.stage == 1:
                gradients.append(torch.empty_like(unit.shard))
                self.reduce_scatter(gradients[-1], unit.gradient)
            elif unit.gradient is None:
                raise ValueError("there is no gradient: call backward(loss) before step()")
            else:
                gradients.append(unit.gradient)
        factor = 1 / k  # the mean over ranks
        if self.max_norm is not None:
            factor *= min(1.0, self.max_norm / (self._norm(gradients) / k + 1e-6))
        for unit, gradient in zip(self.trained, gradients, strict=True):
            unit.master.grad = gradient.to(unit.master.dtype) * factor
        self.optimizer.step()
        for unit in self.trained:
            unit.master.grad = None
            target = unit.whole if self.stage == 0 else unit.shard
            if unit.master is not target:
                target.copy_(unit.master)
            if self.stage in (1, 2):
                gather(unit.whole, unit.shard)
            if self.stage < 2:
                unit.gradient.zero_()
            else:
                unit.gradient = None

    def held(self) -> dict[str, list[torch.Tensor]]:
        """Return the tensors of the model state that this rank holds now, by kind; counters of steps are left out."""
        state = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        return {
            "parameters": [unit.shard if self.stage == 3 else unit.whole for unit in self.units],
            "gradients": [unit.gradient for unit in self.trained if unit.gradient is not None],
            "optimizer": [value for value in state if torch.is_tensor(value) and value.ndim],
            "master": [unit.master for unit in self.trained if unit.master.dtype != unit.whole.dtype],
        }

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        """The length of the whole gradient: a shard's own norm would clip each rank by another factor."""
        square = sum(gradient.double().square().sum() for gradient in gradients)
        if self.stage > 0:
            dist.all_reduce(square)
        return square.sqrt().item()

    def _came(self, unit: Unit) -> None:
        unit.waiting -= 1
        if unit.waiting == 0:
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        """Keep this rank's part of the unit's gradient, summed over ranks, and drop the rest."""
        whole = torch.zeros(unit.size * dist.get_world_size(), dtype=unit.whole.dtype)
        for parameter, place in zip(unit.parameters, unit.views(whole), strict=True):
            if parameter.grad is not None:
                place.copy_(parameter.grad)
            parameter.grad = None
        shard = torch.empty_like(unit.shard)
        self.reduce_scatter(shard, whole)
        unit.gradient = shard if unit.gradient is None else unit.gradient.add_(shard)
        unit.waiting = 0
        if self.stage == 3:
            self._free([unit])

    def _fetch(self, units: list[Unit]) -> None:
        for unit in units:
            unit.fetch()

    def _free(self, units: list[Unit]) -> None:
        for unit in units:
            unit.free()

    def _used(self, units: list[Unit], output) -> None:
        """Free the units after their forward, and fetch them when the gradient of their output comes."""
        for tensor in tree_leaves(output):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._fetch(units))
        if not self.in_backward:  # activations that are computed again need the parameters for the backward at once
            self._free(units)


def of_kind(parameters: list[nn.Parameter], trains: bool) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad == trains]


def divided(model: nn.Module, layers: Iterable[nn.Module]) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Return each layer with its parameters, then the model with the rest. What two layers share is of the rest, which
    is there from the beginning of forward and of backward.
    """
    layers = list(layers)
    home = {module: layer for layer in layers for module in layer.modules()}
    users: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, set()).add(home.get(module, model))
    owner = {parameter: of_it.pop() if len(of_it) == 1 else model for parameter, of_it in users.items()}
    return [(module, [p for p, of_it in owner.items() if of_it is module]) for module in (*layers, model)]
