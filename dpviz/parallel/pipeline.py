"""Pipeline parallelism by hand: the ranks of a group hold one layer after another, and micro-batches pass through.

The schedule is GPipe's: all micro-batches forward, then all backward, so that a stage computes one while the next stage
computes the one before. Of the p + K - 1 turns of a stage, p - 1 are idle (the "bubble"). What travels is one tensor a
micro-batch and border: activations to the next stage, their gradient back.

In one thing it differs from the paper: there backward begins with the last micro-batch, here with the first, as in
torch.distributed.pipelining.ScheduleGPipe. That changes neither turns nor memory; gradients are added up in another
order, so their last bits may differ.

Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism" (2019). Every
method is called by all ranks of `group`, in the same order.
"""

import torch
import torch.distributed as dist


class Pipeline:
    """Trains `stage`, this rank's layers. Built in lesson 10.

    stage   a module; the first rank's takes the data, the others' what the rank before sends
    loss    of (output, y): a scalar, the mean over a micro-batch; only the last rank calls it
    shape   of (x): the shape in which activations of a micro-batch travel
    group   the ranks that hold the stages, in order
    sent    bytes that this rank has handed to others, so far
    """

    def __init__(self, stage, *, loss, shape, group, dtype=torch.float32):
        self.stage, self.loss, self.shape, self.group, self.dtype = stage, loss, shape, group, dtype
        self.place, self.stages = dist.get_rank(group), dist.get_world_size(group)
        self.is_first, self.is_last = self.place == 0, self.place == self.stages - 1
        self.sent = 0

    def train(self, micro_batches):
        """Add the gradients of the mean over micro-batches of (x, y), equally large. Return the loss on the last rank,
        None on the others.
        """
        kept, total = [], 0.0
        for x, y in micro_batches:  # forward
            received = x if self.is_first else self.receive(self.shape(x)).requires_grad_()
            out = self.stage(received)
            if self.is_last:
                out = self.loss(out, y) / len(micro_batches)
                total += out.item()
            else:
                self.send(out.detach(), to=self.place + 1)
            kept.append((received, out))
        for received, out in kept:  # backward, in the same order, so that the first gradients are on their way first
            out.backward(None if self.is_last else self.receive(out.shape, of=self.place + 1))
            if not self.is_first:
                self.send(received.grad, to=self.place - 1)
        return total if self.is_last else None

    def send(self, tensor, *, to):
        dist.send(tensor.contiguous(), group=self.group, group_dst=to)
        self.sent += tensor.nbytes

    def receive(self, shape, *, of=None):
        tensor = torch.empty(shape, dtype=self.dtype)
        dist.recv(tensor, group=self.group, group_src=self.place - 1 if of is None else of)
        return tensor
