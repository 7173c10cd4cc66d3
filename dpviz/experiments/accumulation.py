"""What do K micro-batches cost, and how often must the ranks communicate? torch's DDP, used rightly and in four other
ways.

    python -m dpviz run accumulation --accumulation-steps 4 --sync flag_after_forward --world-size 2 --json

Built in lesson 03.
"""

from __future__ import annotations

import copy
import statistics
from contextlib import nullcontext

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.measure import clock, collectives, fingerprint
from dpviz.measure.memory import kept_for_backward
from dpviz.measure.meter import Meter
from dpviz.questions.accumulation import Config
from dpviz.records import Step

__all__ = ["Config", "experiment"]

SAMPLED = 64  # parameters in each record, for a picture of how far the ranks are apart
LARGEST_WINDOW = 2048  # samples of which activations are measured at once: some 40 MB a rank for the transformer


def experiment(config):
    """Go through this rank's micro-batches, an optimizer update a window. Yields a Step an update; see `Ledger`."""
    ddp, optimizer = build(config)
    micro_step, K = SYNCS[config.sync], config.accumulation_steps
    ledger = Ledger(config, ddp, optimizer)
    for update, window in enumerate(windows(config, dist.get_rank())):  # K micro-batches each
        parts = {"by_k": K, "by_window": len(window), "none": 1}[config.scale]
        ledger.begin(update)
        optimizer.zero_grad()
        for number, batch in enumerate(window, start=1):
            micro_step(ddp, batch, parts, is_first=number == 1, is_last=number == len(window))
            ledger.note()
        ledger.before_step()
        optimizer.step()
        yield Step(step=update, values=ledger.after_step())
    return ledger.report()


def last(ddp, batch, parts, *, is_first, is_last):
    with nullcontext() if is_last else ddp.no_sync():  # round the forward and the backward
        loss = models.loss(ddp, *batch) / parts
        loss.backward()


def every(ddp, batch, parts, *, is_first, is_last):
    loss = models.loss(ddp, *batch) / parts
    loss.backward()


def backward_only(ddp, batch, parts, *, is_first, is_last):
    loss = models.loss(ddp, *batch) / parts  # here DDP decides: it will reduce
    with nullcontext() if is_last else ddp.no_sync():
        loss.backward()


def flag_after_forward(ddp, batch, parts, *, is_first, is_last):
    loss = models.loss(ddp, *batch) / parts
    ddp.require_backward_grad_sync = is_last  # the next forward reads it
    loss.backward()


def off_by_one(ddp, batch, parts, *, is_first, is_last):
    with nullcontext() if is_first else ddp.no_sync():
        loss = models.loss(ddp, *batch) / parts
        loss.backward()


SYNCS = {f.__name__: f for f in (last, every, backward_only, flag_after_forward, off_by_one)}


class Recomputed(nn.Module):
    """A model of which only the inputs are kept for backward; everything else is computed again."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return checkpoint(self.model, x, use_reentrant=False)


def build(config):
    """Return (model wrapped in DDP, optimizer), equal on every rank; with inputs the model is one weight w = 1."""
    name, dataset = (config.model, config.data) if config.inputs is None else ("weight", "count")
    model = models.build(name, data.load(dataset), seed=config.seed, dtype=DTYPES[config.dtype])
    ddp = DistributedDataParallel(Recomputed(model) if config.recompute else model)
    for _ in range(2):  # DDP rebuilds its buckets after its first backward, with collectives of its own
        models.loss(ddp, *window(config, dist.get_rank(), 0)[0]).backward()
    if config.optimizer == "sgd":
        return ddp, torch.optim.SGD(ddp.parameters(), lr=0.01)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=0.001, weight_decay=0.0)


def windows(config, rank):
    """Yield this rank's micro-batches, a list of (x, y) for each update; the last list may be short."""
    for update in range(config.updates()):
        yield window(config, rank, update)


def window(config, rank, update):
    """Return the micro-batches of one rank and update."""
    first = update * config.accumulation_steps
    end = min(first + config.accumulation_steps, config.micro_batches())
    if config.inputs is not None:
        return [(torch.tensor([[x]], dtype=torch.float64), torch.zeros(1)) for x in config.inputs[rank][first:end]]
    before, size = rank * config.micro_batches(), config.micro_batch
    x, y = data.samples(data.load(config.data), (before + first) * size, (before + end) * size, config.seed)
    return list(zip(x.split(size), y.split(size), strict=True))


def joined(batches):
    """Return micro-batches as one batch (x, y)."""
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


class Ledger:
    """Notes what each update is made of and costs; it calls no collective and changes nothing.

    An update's values: all_reduces and all_reduces_by_micro_batch; norm of the gradient, true_norm of one process's,
    scale (the factor that fits best), error (length of the difference over the true length); update_norm, the length
    of the step; digest of the parameters and a few of them, before and after.
    The report: bytes an update, seconds of each update, and what the rank holds (see `held`).
    """

    def __init__(self, config, ddp, optimizer):
        self.config, self.ddp, self.optimizer, self.meter = config, ddp, optimizer, Meter()
        self.sent, self.seconds = [], []

    def begin(self, update):
        self.true = self.one_process(update)
        self.start = flat(self.ddp.parameters())
        self.meter.read()
        self.issued = [collectives.issued()]
        self.began = clock.now()

    def note(self):
        self.issued.append(collectives.issued())

    def before_step(self):
        self.seconds.append(clock.now() - self.began)
        sent, issued = self.meter.read()
        self.sent.append(sent)
        gradient = flat(p.grad for p in self.ddp.parameters())
        square = float(self.true @ self.true)
        self.values = {
            "all_reduces": sum(entry.name == "all_reduce" for entry in issued),
            "all_reduces_by_micro_batch": numpy.diff(self.issued).tolist(),
            "norm": float(numpy.linalg.norm(gradient)),
            "true_norm": square**0.5,
            "scale": float(gradient @ self.true) / square if square else float("nan"),
            "error": float(numpy.linalg.norm(gradient - self.true)) / square**0.5 if square else float("nan"),
        }

    def after_step(self):
        end = flat(self.ddp.parameters())
        return {
            **self.values,
            "update_norm": float(numpy.linalg.norm(end - self.start)),
            "digest": fingerprint.digest(self.ddp.parameters()),
            "parameters_before": self.start[:: 1 + len(end) // SAMPLED].tolist(),
            "parameters": end[:: 1 + len(end) // SAMPLED].tolist(),
        }

    def one_process(self, update):
        """Return the gradient of the mean over the window's samples of all ranks, in float64, at this rank's
        parameters.
        """
        model, k = copy.deepcopy(self.ddp.module).double(), dist.get_world_size()
        model.zero_grad()
        for rank in range(k):
            (models.loss(model, *joined(window(self.config, rank, update))) / k).backward()
        return flat(p.grad for p in model.parameters())

    def report(self):
        return {
            "bucket_elements": sum(p.numel() for p in self.ddp.parameters()),
            "wire_bytes": self.sent[0],
            "seconds": self.seconds,
            "forward_backward_s": statistics.median(self.seconds),
            **self.held(),
        }

    def held(self):
        """Return the bytes of parameters, gradients and optimizer state, and of what autograd keeps for the backward
        of one micro-batch and of a whole window at once (None where that is large), as set and the other way.
        """
        model, batches = self.ddp.module, window(self.config, dist.get_rank(), 0)
        plain = getattr(model, "model", model) if self.config.recompute else model
        whole = len(batches) * self.config.micro_batch <= LARGEST_WINDOW
        settings = {"kept": plain, "recomputed": Recomputed(plain)}
        found = {
            f"{size}_{name}": activation_bytes(one, batch) if batch else None
            for size, batch in (("micro_batch", batches[0]), ("window", joined(batches) if whole else None))
            for name, one in settings.items()
        }
        parameters = list(model.parameters())
        state = [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        return {
            "activation_bytes": found[f"micro_batch_{'recomputed' if self.config.recompute else 'kept'}"],
            "activations": found,
            "model_state_bytes": sum(t.nbytes for t in [*parameters, *(p.grad for p in parameters), *state]),
        }


def activation_bytes(model, batch):
    """Return what autograd keeps between forward and backward, parameters and inputs aside."""
    with kept_for_backward(without=[*model.parameters(), *batch]) as kept:
        models.loss(model, *batch)
    return kept.bytes
