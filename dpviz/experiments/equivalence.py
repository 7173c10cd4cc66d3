"""Do k ranks compute the gradient of the whole batch? One data-parallel update by hand, beside one process on all the
samples.

    python -m dpviz run equivalence --world-size 4 --accumulation-steps 2 --dtype float64 --json

Built in lesson 01.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpviz import data, models
from dpviz.measure import collectives, fingerprint
from dpviz.parallel.ddp import all_reduce_gradients, broadcast_buffers
from dpviz.questions.equivalence import Config
from dpviz.records import Step

__all__ = ["Config", "experiment", "experiment_with_ddp"]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def experiment(config):
    """Train `config.steps` updates on this rank. Yields a Step an update; returns this rank's vectors and sizes (see
    `Witness`).
    """
    rank, k = dist.get_rank(), dist.get_world_size()
    model, optimizer = build(config)  # the same seed, so the same parameters on every rank
    witness = Witness(config, model)
    for step in range(config.steps):
        if config.broadcast_buffers:
            broadcast_buffers(model)
        optimizer.zero_grad()
        loss = 0.0
        for x, y in micro_batches(config, step, rank, k):  # this rank's part of the global batch
            part = models.loss(model, x, y, config.reduction) / parts(config)
            part.backward()
            loss += part.item()
        witness.before_all_reduce()
        if config.all_reduce == "before_step":
            all_reduce_gradients(model, average=config.average)  # all of data parallelism is here
        witness.before_step()
        optimizer.step()
        if config.all_reduce == "after_step":
            all_reduce_gradients(model, average=config.average)
        yield Step(step=step, loss=loss, values=witness.after_step())
    return witness.report()


def experiment_with_ddp(config):
    """The same with torch's own class, which averages the gradients during the last backward."""
    rank, k = dist.get_rank(), dist.get_world_size()
    model, optimizer = build(config)
    witness = Witness(config, model)
    ddp = DistributedDataParallel(model, forward_sync_buffers=config.broadcast_buffers)
    for step in range(config.steps):
        optimizer.zero_grad()
        loss = 0.0
        batches = micro_batches(config, step, rank, k)
        for number, (x, y) in enumerate(batches, start=1):
            with (
                ddp.no_sync() if number < len(batches) else nullcontext()
            ):  # forward and backward: DDP decides in the forward
                part = models.loss(ddp, x, y, config.reduction) / parts(config)
                part.backward()
            loss += part.item()
        witness.before_step()
        optimizer.step()
        yield Step(step=step, loss=loss, values=witness.after_step())
    return witness.report()


def build(config, dtype=None):
    """Return (model, optimizer), equal on every rank for equal configs."""
    model = models.build(
        config.model, data.load(config.data), norm=config.norm, seed=config.seed, dtype=dtype or DTYPES[config.dtype]
    )
    optimizers = {"sgd": torch.optim.SGD, "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.0)}
    return model, optimizers[config.optimizer](model.parameters(), lr=config.lr)


def parts(config):
    """What each micro-batch's loss is divided by: K for a mean of means, 1 for a sum of sums."""
    return config.accumulation_steps if config.reduction == "mean" else 1


def micro_batches(config, step, rank, k):
    """Return the K micro-batches of B samples that are this rank's: its contiguous part of the step's global batch of
    k * K * B.
    """
    mine = config.accumulation_steps * config.micro_batch
    start = (step * k + rank) * mine
    x, y = data.samples(data.load(config.data), start, start + mine, config.seed)
    return list(zip(x.split(config.micro_batch), y.split(config.micro_batch), strict=True))


def whole_batch(config, step, k):
    """Return the step's global batch, as one process would take it: a list of one (x, y)."""
    size = k * config.accumulation_steps * config.micro_batch
    return data.samples(data.load(config.data), step * size, (step + 1) * size, config.seed)


class Witness:
    """Notes what a rank holds at the moments of its updates; it calls no collective and changes nothing.

    names, sizes              the parameter tensors and their numbers of elements
    local, reduced, reference first update: this rank's own gradient, what the optimizer was given, and that of one
                              process in float64 (rank 0 only); vectors of sum(sizes) float64
    update_norm               length of the first update; reference_update_norm that of one process
    buffer_bytes              a list, one entry a buffer (those of batch norm)
    """

    def __init__(self, config, model):
        self.config, self.model = config, model
        self.names, parameters = zip(*model.named_parameters(), strict=True)
        self.parameters = list(parameters)
        self.sizes = [p.numel() for p in self.parameters]
        self.local = self.reduced = self.update = None
        self.start = flat(self.parameters)
        self.buffers_in_forward = self.issued_in_forward = None
        model.register_forward_pre_hook(
            self.before_forward
        )  # a hook, since DDP broadcasts the buffers inside its own forward

    def before_forward(self, *_):
        if self.buffers_in_forward is None:
            self.buffers_in_forward = fingerprint.digest(self.model.buffers())
            self.issued_in_forward = collectives.issued()

    def before_all_reduce(self):
        if self.local is None:
            self.local = flat(p.grad for p in self.parameters)

    def before_step(self):
        if self.reduced is None:
            self.reduced = flat(p.grad for p in self.parameters)

    def after_step(self):
        """Return what is recorded of this update: digests, and a few values of the parameters."""
        if self.update is None:
            self.update = flat(self.parameters) - self.start
        in_forward, self.buffers_in_forward = self.buffers_in_forward, None
        return {
            "parameters": fingerprint.sample(self.parameters),
            "parameters_digest": fingerprint.digest(self.parameters),
            "buffers_digest": fingerprint.digest(self.model.buffers()),
            "buffers_digest_in_forward": in_forward,
            "all_reduces": collectives.issued() - self.issued_in_forward,
        }

    def report(self):
        report = {
            "names": list(self.names),
            "sizes": self.sizes,
            "local": self.reduced if self.local is None else self.local,
            "reduced": self.reduced,
            "update_norm": float(numpy.linalg.norm(self.update)),
            "buffer_bytes": [b.numel() * b.element_size() for b in self.model.buffers()],
        }
        return report | (self.one_process() if dist.get_rank() == 0 else {})

    def one_process(self):
        """Return the reference: the first update of one process in float64 on the whole batch, from the same
        parameters.
        """
        model, optimizer = build(self.config)
        model.double()
        start = flat(model.parameters())
        models.loss(model, *whole_batch(self.config, 0, dist.get_world_size()), self.config.reduction).backward()
        gradient = flat(p.grad for p in model.parameters())
        optimizer.step()
        return {
            "reference": gradient,
            "reference_update_norm": float(numpy.linalg.norm(flat(model.parameters()) - start)),
        }


def flat(tensors):
    """Return tensors laid end to end, as one float64 vector of its own."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors]).cpu().numpy()
