"""Distributed data parallelism by hand: what DistributedDataParallel does, without its buckets and without its overlap.

Every function is called by all ranks of the default process group, in the same order.
"""

import torch
import torch.distributed as dist


def broadcast_parameters(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, once, before training. Built in lesson 01."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def broadcast_buffers(model: torch.nn.Module) -> None:
    """Give every rank the buffers of rank 0 (the running statistics of batch norm), as DDP does before each forward."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def all_reduce_gradients(model: torch.nn.Module, *, average: bool = True) -> None:
    """Replace each gradient by the sum over ranks, divided by their number if `average`. Built in lesson 01."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        if average:
            parameter.grad /= dist.get_world_size()
