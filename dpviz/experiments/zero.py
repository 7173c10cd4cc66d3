"""Who needs to hold what? One model trained under a ZeRO stage, by hand or by torch's classes, beside stage 0 and one
process.

    python -m dpviz run zero --stage 3 --world-size 4 --json

Built in lesson 08.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpviz import data, models
from dpviz.experiments import engines
from dpviz.experiments.equivalence import DTYPES, micro_batches, whole_batch
from dpviz.measure import clock, wire
from dpviz.measure.memory import distinct_bytes, kept_for_backward, watched
from dpviz.measure.meter import Meter
from dpviz.questions.zero import Config
from dpviz.records import COUNTED, Step

__all__ = ["Config", "experiment"]


def experiment(config):
    """Train under the stage, then the same under stage 0. Yields a Step an update of the former."""
    engine = engines.make(config, build(config), stage=config.stage)
    account = Account(config, engine)
    losses = []
    for step in range(config.steps):
        account.begin()
        losses.append(train_step(config, engine, step))
        account.end()
        yield Step(step=step, loss=losses[-1])
    measured = {**account.report(), **over_a_step(config, engine), **references(config)}
    return {"losses": losses, **measured}


def references(config):
    """Return losses and seconds of the same training under stage 0; on rank 0 the losses of one process on the whole
    batch; and the bytes that autograd keeps of a micro-batch, which no stage divides.
    """
    plain = engines.make(replace(config, mixed_precision=by_hand(config)), build(config), stage=0)
    losses, ends = [], [clock.now()]
    for step in range(config.steps):
        losses.append(train_step(config, plain, step))
        ends.append(clock.now())
    return {
        "losses_of_stage_0": losses,
        "seconds_of_stage_0": [end - begin for begin, end in pairwise(ends)],
        "losses_of_single": one_process(config, build(config)) if dist.get_rank() == 0 else None,
        "activation_bytes": activation_bytes(config, build(config)),
    }


def train_step(config, engine, step):
    """Go through this rank's K micro-batches of a step and update; return its loss."""
    batches = micro_batches(config, step, dist.get_rank(), dist.get_world_size())
    loss = sum(engine.micro_batch(x, y, last=number == len(batches)) for number, (x, y) in enumerate(batches, start=1))
    engine.step()
    return loss


def build(config):
    """Return the model that every rank starts from."""
    dtype = torch.bfloat16 if by_hand(config) else DTYPES[config.dtype]
    sizes = {"layers": config.layers, "width": config.width}
    model = models.build(config.model, data.load(config.data), seed=config.seed, dtype=dtype, **sizes)
    if config.recompute:
        for layer in models.units(model):
            recompute(layer)
    return model


def by_hand(config):
    """Whether mixed precision is ours, with bfloat16 parameters; FSDP2's keeps them in float32."""
    return config.mixed_precision and config.implementation == "by_hand"


def recompute(layer):
    """Let the layer keep only its input for backward."""
    forward = layer.forward
    layer.forward = lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


class Account:
    """Notes bytes sent, collectives and seconds of each step; it calls no collective."""

    def __init__(self, config, engine):
        self.config, self.engine, self.meter = config, engine, Meter()
        self.seconds, self.sent, self.names = [], [], []

    def begin(self):
        self.meter.read()
        self.engine.ring.read()
        self.began = clock.now()

    def end(self):
        self.seconds.append(clock.now() - self.began)
        sent, issued = self.meter.read()
        calls, sent_by_ring = self.engine.ring.read()
        self.sent.append(sent + (sent_by_ring if wire.how() == COUNTED else 0))
        names = [entry.name.removeprefix("_").removesuffix("_base") for entry in issued]
        self.names.append(names + ["reduce_scatter"] * calls)

    def report(self):
        names = self.names[-1]
        return {
            "wire_bytes": self.sent[-1],
            "seconds": self.seconds,
            "median_s": statistics.median(self.seconds),
            "collectives": {name: names.count(name) for name in sorted(set(names))},
            **self.engine.sizes(),
        }


def over_a_step(config, engine):
    """Return what this rank holds in one more step: "bytes" of model state between backward and step, and "memory", all
    tensors over time: {"peak": bytes, "times": [seconds], "held": {kind: [bytes]}}.
    """
    batches = micro_batches(config, config.steps, dist.get_rank(), dist.get_world_size())
    with watched(engine.held, gathered=engine.gathered(), leaves=engine.leaves()) as watch:
        for number, (x, y) in enumerate(batches, start=1):
            engine.micro_batch(x, y, last=number == len(batches))
        with watch.looking_away():
            held = engine.held()
            watch.mark("gradients", held["gradients"])
            state = {kind: distinct_bytes(tensors) for kind, tensors in held.items()}
        del held
        engine.step()
    return {"bytes": state, "memory": watch.over_time()}


def activation_bytes(config, model):
    """Return what autograd keeps of one micro-batch between forward and backward, parameters and inputs aside."""
    x, y = micro_batches(config, 0, dist.get_rank(), dist.get_world_size())[0]
    with kept_for_backward(without=[*model.parameters(), x, y]) as kept:
        models.loss(model, x, y)
    return kept.bytes


def one_process(config, model):
    """Return the losses of one process that trains on the whole batch, in float64, with torch's own clipping."""
    model = model.double()
    update = engines.make_optimizer(config, model.parameters())
    losses = []
    for step in range(config.steps):
        update.zero_grad()
        loss = models.loss(model, *whole_batch(config, step, dist.get_world_size()))
        loss.backward()
        if config.max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
        update.step()
        losses.append(loss.item())
    return losses
