"""Distributed data parallelism by hand: what DistributedDataParallel does, in three steps.

    all_reduce_gradients    one all-reduce a tensor, after backward
    all_reduce_flat         one all-reduce in all, after backward
    BucketedGradients       one all-reduce a bucket, while backward still computes: what DistributedDataParallel does

Terms: a *bucket* is a list of parameters whose gradients travel together; its *cap* is the size in bytes at which it
is full. Everything here is called by all ranks of the default process group, in the same order.
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
        if parameter.requires_grad:  # a frozen one has no gradient
            dist.all_reduce(parameter.grad)
            if average:
                parameter.grad /= dist.get_world_size()


def all_reduce_flat(model: torch.nn.Module) -> None:
    """Average all gradients over ranks in one message: laid end to end, summed, divided, copied back. Built in lesson
    05.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def fill_buckets(parameters: list[torch.Tensor], cap_bytes: float) -> list[list[torch.Tensor]]:
    """Put parameters into buckets, in order. A parameter is never split, and a bucket is closed once it holds
    `cap_bytes` or more, so that it may exceed its cap: six tensors of 1.5 MiB and a cap of 2 give three of 3. Built in
    lesson 05.
    """
    buckets, held = [[]], 0
    for parameter in parameters:
        if held >= cap_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter)
        held += parameter.nbytes
    return buckets


class BucketedGradients:
    """Averages gradients over ranks bucket by bucket, while backward computes the ones before them.

    Backward begins with the last layer, so the buckets are filled from there. Whatever becomes ready first, they are
    sent in the order of their index: collectives match by the order in which they are issued, so it must be the same on
    every rank. Call `finish` after each backward. Built in lesson 05.
    """

    def __init__(self, model: torch.nn.Module, *, cap_bytes: float) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buckets = fill_buckets(trained[::-1], cap_bytes)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)
        self.begin()

    def begin(self) -> None:
        # how many gradients each bucket still waits for, and the buckets that are on their way
        self.missing, self.sent = [len(bucket) for bucket in self.buckets], []

    def on_gradient(self, parameter: torch.Tensor) -> None:  # autograd calls it, in the middle of backward
        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:  # the next in order is full
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.sent)]])
            self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        for bucket, (flat, handle) in zip(self.buckets, self.sent, strict=True):
            handle.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.begin()
