"""What do K micro-batches cost, and how often must the ranks communicate? torch's DDP, used rightly and in four other
ways.

    python -m dpviz run accumulation --accumulation-steps 4 --sync flag_after_forward --world-size 2 --json

Built in lesson 03.
"""

from __future__ import annotations

import copy
import statistics
import time
from contextlib import nullcontext

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.measure import fingerprint
from dpviz.measure.memory import kept_for_backward
from dpviz.measure.meter import Meter
from dpviz.questions.accumulation import Config
from dpviz.records import Step

__all__ = ["Config", "experiment"]

LR = 0.01


def experiment(config):
    """Go through this rank's micro-batches, an optimizer update a window. Yields a Step an update; see `Ledger`."""
    ddp = DistributedDataParallel(build(config))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
    backward = SYNCS[config.sync]
    settle(config, ddp)
    ledger = Ledger(config, ddp)
    for update, window in enumerate(windows(config, dist.get_rank())):
        optimizer.zero_grad()
        ledger.begin(update)
        for number, batch in enumerate(window):
            divisor = {"by_k": config.accumulation_steps, "by_window": len(window), "none": 1}[config.scale]
            backward(ddp, lambda: loss(config, ddp, batch) / divisor, number == 0, number == len(window) - 1)  # noqa: B023
        values = ledger.end()
        optimizer.step()
        yield Step(step=update, values={**values, "digest": fingerprint.digest(ddp.parameters())})
    return ledger.report()


def last(ddp, loss_of, is_first, is_last):
    with nullcontext() if is_last else ddp.no_sync():
        loss_of().backward()


def every(ddp, loss_of, is_first, is_last):
    loss_of().backward()


def backward_only(ddp, loss_of, is_first, is_last):
    found = loss_of()  # here DDP decides whether the coming backward is to reduce
    with nullcontext() if is_last else ddp.no_sync():
        found.backward()


def flag_after_forward(ddp, loss_of, is_first, is_last):
    found = loss_of()
    ddp.require_backward_grad_sync = is_last  # the flag that no_sync() sets, and which the next forward reads
    found.backward()


def off_by_one(ddp, loss_of, is_first, is_last):
    with nullcontext() if is_first else ddp.no_sync():
        loss_of().backward()


SYNCS = {f.__name__: f for f in (last, every, backward_only, flag_after_forward, off_by_one)}


class Recomputed(nn.Module):
    """A model of which only the inputs are kept for backward; everything else is computed again."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return checkpoint(self.model, x, use_reentrant=False)


def build(config):
    """Return the model, equal on every rank; with inputs one weight w = 1."""
    name, dataset = (config.model, config.data) if config.inputs is None else ("weight", "count")
    model = models.build(name, data.load(dataset), seed=config.seed, dtype=DTYPES[config.dtype])
    return Recomputed(model) if config.recompute else model


def loss(config, model, batch):
    return models.loss(model, *batch)


def windows(config, rank):
    """Return this rank's micro-batches, a list of (x, y) for each update; the last one may be short."""
    if config.inputs is None:
        first = rank * config.batches * config.micro_batch
        x, y = data.samples(data.load(config.data), first, first + config.batches * config.micro_batch, config.seed)
        batches = list(zip(x.split(config.micro_batch), y.split(config.micro_batch), strict=True))
    else:
        batches = [(torch.tensor([[x]], dtype=torch.float64), torch.zeros(1)) for x in config.inputs[rank]]
    k = config.accumulation_steps
    return [batches[start : start + k] for start in range(0, len(batches), k)]


def settle(config, ddp):
    """Let DDP rebuild its buckets, which it does after its first backward and with collectives of its own."""
    for _ in range(2):
        loss(config, ddp, windows(config, dist.get_rank())[0][0]).backward()


class Ledger:
    """Notes what each update is made of and costs; it calls no collective.

    An update's values: all_reduces; norm of the gradient, true_norm of one process's, scale (the factor that fits
    best), error (length of the difference over the true length). The report: bytes an update, seconds an update,
    activation bytes.
    """

    def __init__(self, config, ddp):
        self.config, self.ddp, self.meter = config, ddp, Meter()
        self.everybody = list(zip(*(windows(config, rank) for rank in range(dist.get_world_size())), strict=True))
        self.sent, self.seconds = [], []

    def begin(self, update):
        self.true = self.one_process(update)
        self.meter.read()
        self.began = time.perf_counter()

    def end(self):
        self.seconds.append(time.perf_counter() - self.began)
        sent, issued = self.meter.read()
        self.sent.append(sent)
        gradient = flat(p.grad for p in self.ddp.parameters())
        square = float(self.true @ self.true)
        return {
            "all_reduces": sum(entry.name == "all_reduce" for entry in issued),
            "norm": float(numpy.linalg.norm(gradient)),
            "true_norm": square**0.5,
            "scale": float(gradient @ self.true) / square if square else float("nan"),
            "error": float(numpy.linalg.norm(gradient - self.true)) / square**0.5 if square else float("nan"),
        }

    def one_process(self, update):
        """Return the gradient of the mean over the window's micro-batches of all ranks, in float64, at this rank's
        parameters.
        """
        model = copy.deepcopy(self.ddp.module).double()
        model.zero_grad()
        batches = [batch for window in self.everybody[update] for batch in window]
        for batch in batches:
            (loss(self.config, model, batch) / len(batches)).backward()
        return flat(p.grad for p in model.parameters())

    def report(self):
        x, y = self.everybody[0][0][0]
        model = self.ddp.module
        with kept_for_backward(without=[*model.parameters(), x, y]) as kept:
            loss(self.config, model, (x, y))
        return {
            "bucket_elements": sum(p.numel() for p in model.parameters()),
            "wire_bytes": self.sent[0],
            "forward_backward_s": statistics.median(self.seconds),
            "activation_bytes": kept.bytes,
        }
