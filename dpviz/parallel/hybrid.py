"""Data parallelism as one axis of a mesh: what this rank holds of the model, other ranks of its own group hold, too.

    Replicated      everyone in the group holds all of it: gradients are averaged by an all-reduce
    HybridSharded   HSDP: ranks of the `shard` group hold 1/s of it each, and gather it for a step; ranks of the
                    `replicate` group hold the same shard. A gradient is reduce-scattered in the former, then averaged
                    in the latter, where only a shard travels

"The model" is whatever this rank has: with tensor and pipeline parallelism some layers, and some of each matrix. So
every part of the model is averaged in a group of its own, and nobody outside of it takes part.

Source: Zhao et al., "PyTorch FSDP" (2023), section 3.2.2, hybrid sharding. Every method is called by all ranks of the
groups, in the same order.
"""

import torch
import torch.distributed as dist


def average_gradients(model, group):
    """Average the gradients over the ranks of `group`, all of them in one message. A parameter that was not used here,
    but perhaps elsewhere, counts as 0; one that is frozen has to be so on every rank. Built in lesson 10.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:  # not used here
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def reduce_scatter(whole, group):
    """Return this rank's part of the sum of `whole` over `group`: each rank sends every other one its part, and adds up
    what comes. It sends (s-1)/s of the payload, as a ring does; gloo's own reduce-scatter would send twice that.
    """
    parts = torch.empty_like(whole)
    dist.all_to_all_single(parts, whole, group=group)
    return parts.view(dist.get_world_size(group), -1).sum(0)


class Replicated:
    """For each step: gather(), any number of backward passes, reduce(), step()."""

    def __init__(self, model, *, optimizer, group):
        self.model, self.group = model, group
        self.optimizer = optimizer(list(model.parameters()))

    def gather(self):
        """Nothing: the parameters are here."""

    def reduce(self):
        average_gradients(self.model, self.group)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held(self):
        """Return the tensors of parameters, gradients and optimizer that this rank holds now."""
        parameters = list(self.model.parameters())
        return _held(parameters, [p.grad for p in parameters if p.grad is not None], self.optimizer)


class HybridSharded:
    """The same, with 1/s of everything on a rank between the steps. All parameters are trained: one without a gradient
    counts as 0, and a frozen one is refused. Built in lesson 10.

    shard, replicate    the two groups of this rank; together they are the ranks that hold this part of the model
    """

    def __init__(self, model, *, optimizer, shard, replicate):
        self.parameters, self.shard_group, self.replicate_group = list(model.parameters()), shard, replicate
        if not all(p.requires_grad for p in self.parameters):
            raise ValueError("a parameter is frozen, but HybridSharded trains them all: leave it out of the model")
        self.sizes = [p.numel() for p in self.parameters]
        s = dist.get_world_size(shard)
        self.padding = -sum(self.sizes) % s
        flat = torch.cat([p.detach().flatten() for p in self.parameters])
        self.whole = torch.cat([flat, flat.new_zeros(self.padding)])
        self.shard = self.whole.chunk(s)[dist.get_rank(shard)].clone()
        for parameter, part in zip(self.parameters, self.whole.split([*self.sizes, self.padding]), strict=False):
            parameter.data = part.view_as(parameter)
        self.free()
        self.optimizer = optimizer([self.shard])

    def gather(self):
        """Let the parameters be whole, from the shards of all ranks."""
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(self.whole, self.shard, group=self.shard_group)

    def reduce(self):
        """Leave this rank's shard of the averaged gradient, and nothing whole."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat = torch.cat([*(one.flatten() for one in gradients), self.whole.new_zeros(self.padding)])
        gradient = reduce_scatter(flat, self.shard_group)
        dist.all_reduce(gradient, group=self.replicate_group)
        ranks = dist.get_world_size(self.shard_group) * dist.get_world_size(self.replicate_group)
        self.shard.grad = gradient / ranks
        for parameter in self.parameters:
            parameter.grad = None
        self.free()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def free(self):
        self.whole.untyped_storage().resize_(0)

    def held(self):
        gradients = [self.shard.grad] if self.shard.grad is not None else []
        return _held([self.whole, self.shard], gradients, self.optimizer)


def _held(parameters, gradients, optimizer):
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    moments = [value for value in state if torch.is_tensor(value) and value.ndim]  # counters of steps left out
    return {"parameters": parameters, "gradients": gradients, "optimizer": moments}
