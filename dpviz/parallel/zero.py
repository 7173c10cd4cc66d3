"""ZeRO by hand: data parallelism in which a rank stops holding what it does not need at the moment.

    Stage0    everything on every rank; gradients are all-reduced before the step
    Stage1    optimizer state and master weights divided by k: gradients are reduce-scattered, each rank updates its
              part, the new parameters are gathered
    Stage2    gradients divided too: reduced as soon as backward has made them, then freed
    Stage3    parameters divided too: gathered before a unit is used, in forward and in backward, then freed

A *unit* is what travels in one message: the parameters of a layer end to end, padded until k divides them. This rank
owns the rank-th of its k equal parts, the *shard*.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (2020). Every
method is called by all ranks of the default process group, in the same order. None broadcasts: where ranks may start
apart, call `dpviz.parallel.ddp.broadcast_parameters(model)` first, or shards of different models are joined.
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

    def when_complete(self, function: Callable[["Unit"], None]) -> None:
        """Call function(unit) as soon as backward has brought the gradients of all its parameters."""

        def came(_):
            self.waiting -= 1
            if self.waiting == 0:
                function(self)

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(came)

    def take_gradient(self) -> torch.Tensor:
        """Return the gradients as one flat tensor, which from then on is the only one to hold them."""
        flat = self.whole.new_zeros(len(self.whole))
        for parameter, place in zip(self.parameters, self.views(flat), strict=True):
            if parameter.grad is not None:
                place.copy_(parameter.grad)
            parameter.grad = None
        return flat

    def free(self) -> None:
        """Give the memory of `whole` back; the parameters keep their place in it."""
        self.whole.untyped_storage().resize_(0)

    def fetch(self) -> None:
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.numel() * self.whole.element_size())
            gather(self.whole, self.shard)


class Stage0:
    """Plain data parallelism. Trains `model`: `backward(loss)` for each micro-batch, then `step()`.

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
        optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
        layers: Iterable[nn.Module] = (),
        master_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        reduce_scatter: Callable[[torch.Tensor, torch.Tensor], None] = reduce_scatter,
    ) -> None:
        self.max_norm, self.reduce_scatter = max_norm, reduce_scatter
        self.units_of = {module: made(parameters) for module, parameters in divided(model, layers)}
        self.units = [unit for units in self.units_of.values() for unit in units]
        self.trained = [unit for unit in self.units if unit.trains]
        self.prepare()
        for unit in self.units:
            unit.master = self.kept(unit).to(master_dtype or unit.whole.dtype)
        self.optimizer = optimizer([unit.master for unit in self.trained])

    def kept(self, unit: Unit) -> torch.Tensor:
        """Return what this rank updates of the unit."""
        return unit.whole

    def prepare(self) -> None:
        for unit in self.trained:  # autograd adds to what is there: one flat gradient a unit, and no copies
            unit.gradient = torch.zeros_like(unit.whole)
            for parameter, place in zip(unit.parameters, unit.views(unit.gradient), strict=True):
                parameter.grad = place

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of one micro-batch."""
        loss.backward()

    def step(self) -> None:
        """Update the parameters and clear the gradients."""
        gradients = [self.reduced(unit) for unit in self.trained]
        if any(gradient is None for gradient in gradients):
            raise ValueError("there is no gradient: call backward(loss) before step()")
        factor = 1 / dist.get_world_size()  # the mean over ranks
        if self.max_norm is not None:
            factor *= min(1.0, self.max_norm / (factor * self.norm(gradients) + 1e-6))
        for unit, gradient in zip(self.trained, gradients, strict=True):
            unit.master.grad = gradient.to(unit.master.dtype).mul_(factor)
        self.optimizer.step()
        for unit in self.trained:
            unit.master.grad = None
            if unit.master is not self.kept(unit):
                self.kept(unit).copy_(unit.master)
            self.publish(unit)
            self.clear(unit)

    def reduced(self, unit: Unit) -> torch.Tensor:
        """Return the sum over ranks of what this rank updates of the unit."""
        dist.all_reduce(unit.gradient)
        return unit.gradient

    def publish(self, unit: Unit) -> None:
        """Bring what the ranks have updated to where forward reads it."""

    def clear(self, unit: Unit) -> None:
        unit.gradient.zero_()

    def norm(self, gradients: list[torch.Tensor]) -> float:
        """Return the length of the whole gradient."""
        return sum(gradient.double().square().sum() for gradient in gradients).sqrt().item()

    def held(self) -> dict[str, list[torch.Tensor]]:
        """Return the tensors of the model state that this rank holds now, by kind; counters of steps are left out."""
        state = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        return {
            "parameters": [unit.whole for unit in self.units],
            "gradients": [unit.gradient for unit in self.trained if unit.gradient is not None],
            "optimizer": [value for value in state if torch.is_tensor(value) and value.ndim],
            "master": [unit.master for unit in self.trained if unit.master.dtype != unit.whole.dtype],
        }


class Stage1(Stage0):
    def kept(self, unit):
        return unit.shard

    def reduced(self, unit):
        shard = torch.empty_like(unit.shard)
        self.reduce_scatter(shard, unit.gradient)
        return shard

    def publish(self, unit):
        gather(unit.whole, unit.shard)

    def norm(self, gradients):
        square = torch.as_tensor(super().norm(gradients) ** 2, dtype=torch.float64)
        dist.all_reduce(square)  # a shard's own norm would clip each rank by another factor
        return square.sqrt().item()


class Stage2(Stage1):
    def prepare(self):
        for unit in self.trained:
            unit.when_complete(self.reduce)

    def backward(self, loss):
        for unit in self.trained:
            unit.waiting = len(unit.parameters)
        loss.backward()
        for unit in self.trained:
            if unit.waiting:  # the loss does not depend on one of its parameters
                self.reduce(unit)

    def reduce(self, unit):
        shard = torch.empty_like(unit.shard)
        self.reduce_scatter(shard, unit.take_gradient())
        unit.gradient = shard if unit.gradient is None else unit.gradient.add_(shard)
        unit.waiting = 0

    def reduced(self, unit):
        return unit.gradient

    def clear(self, unit):
        unit.gradient = None


class Stage3(Stage2):
    def prepare(self):
        super().prepare()
        self.in_backward = False
        for unit in self.units:
            unit.shard = unit.shard.clone()
            unit.free()
        for module, units in self.units_of.items():
            lend(module, units, may_free=lambda: not self.in_backward)

    def backward(self, loss):
        self.in_backward = True
        super().backward(loss)
        self.in_backward = False
        free(self.units)

    def reduce(self, unit):
        super().reduce(unit)
        unit.free()

    def publish(self, unit):
        pass  # it is gathered when it is used

    def held(self):
        return {**super().held(), "parameters": [unit.shard for unit in self.units]}


STAGES = (Stage0, Stage1, Stage2, Stage3)


def lend(module: nn.Module, units: list[Unit], *, may_free: Callable[[], bool]) -> None:
    """Fetch the units for the module's forward, free them after it, and fetch them for its backward. Activations that
    are computed again in backward need the parameters at once: then `may_free` says no.
    """

    def used(_, inputs, output):
        for tensor in tree_leaves(output):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: fetch(units))
        if may_free():
            free(units)

    module.register_forward_pre_hook(lambda *_: fetch(units))
    module.register_forward_hook(used)


def fetch(units: list[Unit]) -> None:
    for unit in units:
        unit.fetch()


def free(units: list[Unit]) -> None:
    for unit in units:
        unit.free()


def made(parameters: list[nn.Parameter]) -> list[Unit]:
    """Return a unit of the parameters that train, and one of those that do not, where there are such."""
    kinds = {trains: [p for p in parameters if p.requires_grad == trains] for trains in (True, False)}
    return [Unit(part, trains=trains) for trains, part in kinds.items() if part]


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
