"""FSDP by hand: gather a layer, use it, free it, and gather the next one meanwhile.

A *group* is what travels in one message: the parameters of a layer. Each parameter is divided by rows, rank r holding
the r-th of k equal blocks, padded where k does not divide the rows: its *shard*. To *unshard* a group is to gather its
parameters whole; to *reshard* it is to free them again. What the optimizer updates are the shards.

    forward    unshard, compute, reshard (or keep the layer until backward)
    backward   unshard, compute, reshard; the gradients are reduce-scattered, each rank keeps those of its shard

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel" (2023); dividing each parameter
by rows is what FSDP2 (fully_shard) does. Every method is called by all ranks of the default process group, in the same
order. None broadcasts: where ranks may start with different parameters, call
`dpviz.parallel.ddp.broadcast_parameters(model)` first, or shards of different models are joined.
"""

import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves


def reduce_scatter(whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of the sum of `whole` over ranks. On gloo it sends as much as an all-reduce."""
    shard = whole.new_empty(whole.numel() // dist.get_world_size())
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, whole)
    return shard


class Group:
    """The parameters of one layer, of which this rank keeps its shards. Built in lesson 09."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        k, rank = dist.get_world_size(), dist.get_rank()
        self.parameters, self.shards = parameters, []
        self.gathering = None  # the gather that is under way
        self.waiting = 0  # gradients that this backward has still to bring
        for parameter in parameters:
            rows = by_rows(parameter.detach())
            block = -(-len(rows) // k)  # rounded up
            shard, mine = rows.new_zeros(block, rows.shape[1]), rows[rank * block :][:block]
            shard[: len(mine)] = mine
            self.shards.append(nn.Parameter(shard))
            parameter.untyped_storage().resize_(0)  # the memory is given back, the parameter stays


def by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a matrix, a row an entry of its first dimension."""
    return tensor.reshape(len(tensor) if tensor.ndim else 1, -1)


def is_whole(group: Group) -> bool:
    return any(parameter.untyped_storage().nbytes() for parameter in group.parameters)


def start_unshard(group: Group) -> None:
    """Begin to gather the group's shards, unless it is whole or they are on their way. Built in lesson 09."""
    if group.gathering is None and not is_whole(group):
        message = torch.cat([shard.detach().flatten() for shard in group.shards])
        group.flat = message.new_empty(dist.get_world_size() * message.numel())
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        group.began = time.perf_counter()
        group.gathering = gather(group.flat, message, async_op=True)


def unshard(group: Group) -> None:
    """Make the group's parameters whole. Built in lesson 09."""
    start_unshard(group)
    if group.gathering is not None:
        group.gathering.wait()
        ranks = group.flat.view(dist.get_world_size(), -1)
        blocks = ranks.split([shard.numel() for shard in group.shards], dim=1)
        for parameter, block in zip(group.parameters, blocks, strict=True):
            size = parameter.numel()
            parameter.untyped_storage().resize_(size * parameter.element_size())
            parameter.data.copy_(block.reshape(-1)[:size].view(parameter.shape))
        group.flat = group.gathering = None


def reshard(group: Group) -> None:
    """Free the group's parameters; the shards stay. Built in lesson 09."""
    for parameter in group.parameters:
        parameter.untyped_storage().resize_(0)


def reduce_gradients(group: Group, *, reduce_scatter=reduce_scatter) -> None:
    """Add to each shard's gradient the mean over ranks of its part, and drop the whole ones. Built in lesson 09."""
    k, parts = dist.get_world_size(), []
    for parameter, shard in zip(group.parameters, group.shards, strict=True):
        padded = parameter.new_zeros(k * shard.numel())
        if parameter.grad is not None:
            padded[: parameter.numel()] = parameter.grad.flatten()
        parts.append(padded.view(k, -1))  # a row a rank
        parameter.grad = None
    mine = reduce_scatter(torch.cat(parts, dim=1).flatten()) / k
    sizes = [shard.numel() for shard in group.shards]
    for shard, part in zip(group.shards, mine.split(sizes), strict=True):
        part = part.view_as(shard)
        shard.grad = part.clone() if shard.grad is None else shard.grad.add_(part)


class FullySharded:
    """Shards `model`, a group for each of `layers` and one for the rest; then it is used as before: `model(x)`,
    `backward(loss)`, and an optimizer of `shards()`.

    reshard_after_forward   free a layer after its forward, and gather it again for backward (the rest stays)
    prefetch                how many groups to gather ahead of the one in use, each one more whole layer in memory
    reduce_scatter          by default torch's own; give a ring to send the (k-1)/k that the algorithm needs
    watch                   called as watch(what, group, start_s, end_s) for every "gather", "wait", "forward",
                            "backward", "scatter" and "whole", seconds on this host's monotonic clock

    Set `sync` to False to keep the gradients of a micro-batch whole on each rank, and True for the last one. Built in
    lesson 09.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Iterable[nn.Module] = (),
        reshard_after_forward: bool = True,
        prefetch: int = 0,
        reduce_scatter: Callable[[torch.Tensor], torch.Tensor] = reduce_scatter,
        watch: Callable[[str, int, float, float], None] = lambda *_: None,
    ) -> None:
        self.prefetch, self.reduce_scatter, self.watch, self.sync = prefetch, reduce_scatter, watch, True
        self.groups: list[Group] = []
        self.order: list[int] = []  # in which forward used the groups
        self.in_backward = False
        self.since: dict[tuple[str, int], float] = {}
        layers = list(layers)
        owner = owners(model, layers)
        for module in (*layers, model):
            parameters = [p for p in module.parameters() if p.requires_grad and owner[p] is module]
            if parameters:
                keeps = module is model or not reshard_after_forward
                self._hook(module, len(self.groups), keeps)
                self.groups.append(Group(parameters))

    def shards(self) -> list[nn.Parameter]:
        return [shard for group in self.groups for shard in group.shards]

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of one micro-batch to those of the shards."""
        for group in self.groups:
            group.waiting = len(group.parameters)
        self.in_backward = True
        loss.backward()
        self.in_backward = False
        for number, group in enumerate(self.groups):
            if group.waiting:  # a parameter that the loss does not depend on: its gradient is 0
                self._done(number)

    def _hook(self, module: nn.Module, number: int, keeps: bool) -> None:
        module.register_forward_pre_hook(lambda *_: self._before_forward(number))
        module.register_forward_hook(lambda _, __, output: self._after_forward(number, output, keeps))
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: self._came(number, p))

    def _before_forward(self, number: int) -> None:
        if number not in self.order:
            self.order.append(number)
        self._unshard(number, ahead=1)
        self.since["forward", number] = time.perf_counter()

    def _after_forward(self, number: int, output, keeps: bool) -> None:
        self._end("forward", number)
        for tensor in tree_leaves(output):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._before_backward(number))
        if not keeps and not self.in_backward:
            self._reshard(number)

    def _before_backward(self, number: int) -> None:
        self._unshard(number, ahead=-1)
        self.since.setdefault(("backward", number), time.perf_counter())

    def _came(self, number: int, parameter: nn.Parameter) -> None:
        group = self.groups[number]
        if any(parameter is one for one in group.parameters):
            group.waiting -= 1
            if group.waiting == 0:
                self._done(number)

    def _done(self, number: int) -> None:
        group = self.groups[number]
        group.waiting = 0
        self._end("backward", number)
        self._reshard(number)
        if self.sync:
            self.since["scatter", number] = time.perf_counter()
            reduce_gradients(group, reduce_scatter=self.reduce_scatter)
            self._end("scatter", number)

    def _unshard(self, number: int, *, ahead: int) -> None:
        group = self.groups[number]
        was_whole, asked = is_whole(group), time.perf_counter()
        start_unshard(group)
        place = self.order.index(number)
        for distance in range(1, self.prefetch + 1):
            if 0 <= (other := place + ahead * distance) < len(self.order):
                coming = self.groups[self.order[other]]
                if coming.waiting or not self.in_backward:  # what backward is done with would be old after the update
                    start_unshard(coming)
        unshard(group)
        if not was_whole:
            now = time.perf_counter()
            self.watch("gather", number, group.began, now)
            self.watch("wait", number, asked, now)
            self.since["whole", number] = now

    def _reshard(self, number: int) -> None:
        group = self.groups[number]
        if group.gathering is not None:  # gathered ahead and not used: it would be old after the update
            unshard(group)
        if is_whole(group):
            reshard(group)
            self._end("whole", number)

    def _end(self, what: str, number: int) -> None:
        if (start := self.since.pop((what, number), None)) is not None:
            self.watch(what, number, start, time.perf_counter())


def owners(model: nn.Module, layers: list[nn.Module]) -> dict[nn.Parameter, nn.Module]:
    """Return the layer of each parameter, the model for the rest and for what two of them share."""
    home = {module: layer for layer in layers for module in layer.modules()}
    users: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, set()).add(home.get(module, model))
    return {parameter: of_it.pop() if len(of_it) == 1 else model for parameter, of_it in users.items()}
