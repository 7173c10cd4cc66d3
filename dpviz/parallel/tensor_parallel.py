"""Tensor parallelism by hand: the ranks of a group share two matrices, and work on the same samples.

    ColumnParallel  this rank keeps some of the outputs: rows of the weight (torch stores it outputs first), and of the
                    bias. Its input is whole, its output a part
    RowParallel     this rank keeps some of the inputs: columns of the weight. Its input is a part; the outputs are
                    partial sums, which an all-reduce adds up. The bias is added once, afterwards

One after the other, with any function of single numbers in between (gelu), they need one all-reduce in forward and one
in backward. These are two conjugate operators: f is the identity in forward and an all-reduce in backward, g the other
way round.

Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism" (2019),
section 3. Every function is called by all ranks of `group`, in the same order.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class CopyToGroup(torch.autograd.Function):
    """f: every rank reads the same x; what they say of its gradient is added up. Built in lesson 10."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOverGroup(torch.autograd.Function):
    """g: partial sums become the sum; its gradient is the same for every part. Built in lesson 10."""

    @staticmethod
    def forward(ctx, part, group):
        whole = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def my_part(tensor, *, dim, group):
    """Return this rank's equal part of `tensor` along `dim`, as a parameter of its own.

    Raises ValueError where the number of ranks does not divide it.
    """
    t = dist.get_world_size(group)
    if tensor.shape[dim] % t:
        raise ValueError(f"{tensor.shape[dim]} rows or columns cannot be shared by {t} ranks: t must divide them")
    return nn.Parameter(tensor.detach().chunk(t, dim)[dist.get_rank(group)].clone())


class ColumnParallel(nn.Module):
    """This rank's part of `linear`: (n, inputs) -> (n, outputs / t). Built in lesson 10."""

    def __init__(self, linear, *, group):
        super().__init__()
        self.group = group
        self.weight = my_part(linear.weight, dim=0, group=group)
        self.bias = None if linear.bias is None else my_part(linear.bias, dim=0, group=group)

    def forward(self, x):
        return F.linear(CopyToGroup.apply(x, self.group), self.weight, self.bias)


class RowParallel(nn.Module):
    """This rank's part of `linear`: (n, inputs / t) -> (n, outputs), the same on every rank. Built in lesson 10."""

    def __init__(self, linear, *, group):
        super().__init__()
        self.group = group
        self.weight = my_part(linear.weight, dim=1, group=group)
        # whole on every rank: its gradient is the same there
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        out = SumOverGroup.apply(F.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias
