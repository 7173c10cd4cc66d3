"""FSDP by hand: gather a layer, use it, free it, and gather the next one meanwhile.

A *group* is what travels in one message: the parameters of a layer. Each parameter is divided by rows, rank r holding
the r-th of k equal blocks, padded where k does not divide the rows: its *shard*. To *unshard* a group is to gather its
parameters whole; to *reshard* it is to free them again. What the optimizer updates are the shards.

    forward    unshard, compute, reshard (or keep the layer until backward)
    backward   unshard, compute, reshard; the gradients are reduce-scattered, each rank keeps those of its shard

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel" (2023); dividing each parameter
by rows is what FSDP2 (fully_shard) does. Every method is called by all ranks of the default process group, in the same
order.
"""

import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves


def start_gather(whole: torch.Tensor, shard: torch.Tensor) -> dist.Work:
    """Begin to fill `whole` with the shards of all ranks; the caller waits when it needs them."""
    return getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, shard, async_op=True)


def reduce_scatter(whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of the sum of `whole` over ranks. On gloo it sends as much as an all-reduce."""
    shard = whole.new_empty(whole.numel() // dist.get_world_size())
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, whole)
    return shard


class Group:
    """The parameters of one layer."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        k, rank = dist.get_world_size(), dist.get_rank()
        self.parameters, self.shards = parameters, []
        self.gathering: dist.Work | None = None
        self.waiting = 0  # gradients that this backward has still to bring
        for parameter in parameters:
            rows = by_rows(parameter.detach())
            block = -(-len(rows) // k)
            shard = rows.new_zeros(block, rows.shape[1])
            mine = rows[rank * block :][:block]
            shard[: len(mine)] = mine
            self.shards.append(nn.Parameter(shard, requires_grad=parameter.requires_grad))
            parameter.untyped_storage().resize_(0)

    @property
    def is_whole(self) -> bool:
        return any(parameter.untyped_storage().nbytes() for parameter in self.parameters)

    def start_unshard(self) -> None:
        if self.gathering is None and not self.is_whole:
            message = torch.cat([shard.detach().flatten() for shard in self.shards])
            self.flat = message.new_empty(dist.get_world_size() * message.numel())
            self.began = time.perf_counter()
            self.gathering = start_gather(self.flat, message)

    def unshard(self) -> None:
        self.start_unshard()
        if self.gathering is None:
            return
        self.gathering.wait()
        blocks = self.flat.view(dist.get_world_size(), -1).split([shard.numel() for shard in self.shards], dim=1)
        for parameter, block in zip(self.parameters, blocks, strict=True):
            storage, size = parameter.untyped_storage(), parameter.numel()
            storage.resize_(size * parameter.element_size())
            parameter.data.copy_(block.reshape(-1)[:size].view(parameter.shape))
        self.flat = self.gathering = None

    def reshard(self) -> None:
        for parameter in self.parameters:
            parameter.untyped_storage().resize_(0)

    def reduce(self, reduce_scatter: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Give each shard the mean over ranks of its part of the gradient, added to what it has; drop the rest."""
        k, parts = dist.get_world_size(), []
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            padded = parameter.new_zeros(k * shard.numel())
            if parameter.grad is not None:
                padded[: parameter.numel()] = parameter.grad.flatten()
            parts.append(padded.view(k, -1))
            parameter.grad = None
        mine = reduce_scatter(torch.cat(parts, dim=1).flatten()) / k
        for shard, part in zip(self.shards, mine.split([shard.numel() for shard in self.shards]), strict=True):
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
        taken: set[nn.Parameter] = set()
        for module in (*layers, model):
            parameters = [p for p in module.parameters() if p.requires_grad and p not in taken]
            if parameters:
                taken.update(parameters)
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
            group.reduce(self.reduce_scatter)
            self._end("scatter", number)

    def _unshard(self, number: int, *, ahead: int) -> None:
        group = self.groups[number]
        was_whole, asked = group.is_whole, time.perf_counter()
        group.start_unshard()
        place = self.order.index(number)
        for distance in range(1, self.prefetch + 1):
            if 0 <= (other := place + ahead * distance) < len(self.order):
                self.groups[self.order[other]].start_unshard()
        group.unshard()
        if not was_whole:
            now = time.perf_counter()
            self.watch("gather", number, group.began, now)
            self.watch("wait", number, asked, now)
            self.since["whole", number] = now

    def _reshard(self, number: int) -> None:
        if self.groups[number].is_whole:
            self.groups[number].reshard()
            self._end("whole", number)

    def _end(self, what: str, number: int) -> None:
        if (start := self.since.pop((what, number), None)) is not None:
            self.watch(what, number, start, time.perf_counter())


def by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a matrix, a row an entry of its first dimension."""
    return tensor.reshape(len(tensor) if tensor.ndim else 1, -1)
