"""How large should a bucket be? Backwards of torch's DDP, or of one by hand, beside the same that only compute.

    python -m dpviz run buckets --bucket-cap-mb 2 --world-size 2 --link-gbps 1 --json

Built in lesson 05.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.measure import clock, collectives, fingerprint, timeline
from dpviz.measure.meter import Meter
from dpviz.measure.trace import BucketTrace
from dpviz.parallel.ddp import BucketedGradients, all_reduce_flat, all_reduce_gradients
from dpviz.questions.buckets import MIB, SMALL_BYTES, Config
from dpviz.records import Step

__all__ = ["Config", "experiment"]

TRACED = 3  # backwards followed by hooks and profiler, which are not those that are timed


def experiment(config):
    """Run backwards of equal models: computing alone and averaging in turns, then traced. Yields a Step each; returns
    what `Ledger.report` says.
    """
    ledger = Ledger(config)
    for number, (net, finish) in enumerate(ledger.iterations()):
        x = load(config, dist.get_rank())  # a slow data loader takes its time here
        ledger.note("forward")
        loss = net(x).square().mean()
        ledger.note("backward")
        loss.backward()  # DDP's all-reduces run in here
        finish()  # those by hand end here
        ledger.note("done")
        yield Step(step=number)
    return ledger.report()


def with_ddp(model, config):
    """Return (model in torch's own class, what remains to be done after backward: nothing)."""
    options = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
    ddp = DistributedDataParallel(
        model,
        bucket_cap_mb=None if config.default_cap else config.bucket_cap_mb,
        init_sync=False,  # the models are equal already
        **{name: getattr(config, name) for name in options},
    )
    return ddp, lambda: None


def per_tensor(model, config):
    return model, lambda: all_reduce_gradients(model)


def one_message(model, config):
    return model, lambda: all_reduce_flat(model)


def bucketed(model, config):
    return model, BucketedGradients(model, cap_bytes=config.bucket_cap_mb * MIB).finish


IMPLEMENTATIONS = {"torch": with_ddp, "per_tensor": per_tensor, "flat": one_message, "bucketed": bucketed}


class Layer(nn.Module):
    """x + gelu(x @ weight + bias) @ weight.T, the bias being the sum of the small tensors. Using the matrix twice makes
    computing and sending of like length on a link of 1 Gb/s.
    """

    def __init__(self, weight, small):
        super().__init__()
        self.weight, self.small = nn.Parameter(weight), nn.ParameterList(small)

    def forward(self, x):
        y = x @ self.weight
        if len(self.small):
            bias = torch.stack([*self.small]).sum(0)[: y.shape[1]]
            y = y + F.pad(bias, (0, y.shape[1] - len(bias)))
        return x + F.gelu(y) @ self.weight.T


class Stack(nn.Module):
    """Layers one after the other; `skipped` is the number of one that the forward leaves out, or None."""

    def __init__(self, layers, *, backwards, skipped):
        super().__init__()
        self.layers, self.backwards, self.skipped = nn.ModuleList(layers), backwards, skipped

    def forward(self, x):
        numbers = range(len(self.layers))
        for number in reversed(numbers) if self.backwards else numbers:
            if number != self.skipped:
                x = self.layers[number](x)
        return x


def build(config, rank, dtype=None):
    """Return the model, its parameters equal on every rank; they are drawn in float32, whatever the dtype."""
    generator, dtype = torch.Generator().manual_seed(config.seed), dtype or DTYPES[config.dtype]
    small = torch.zeros(SMALL_BYTES // DTYPES[config.dtype].itemsize, dtype=dtype, device="cpu")
    counts = numpy.diff(numpy.linspace(0, config.small_tensors, config.layers + 1).astype(int))
    shape = config.layers, config.width, config.width
    weights = torch.randn(shape, generator=generator, device="cpu") / (2 * config.width**0.5)
    stack = Stack(
        [
            Layer(weight.to(DTYPES[config.dtype]).to(dtype, copy=True), [small.clone() for _ in range(count)])
            for weight, count in zip(weights, counts, strict=True)
        ],
        backwards=config.backwards,
        skipped=config.layers // 2 if rank == config.unused_on else None,
    )
    return stack.to(torch.get_default_device())


def load(config, rank):
    """Return this rank's batch (batch, width), after the time that its data loader takes."""
    if rank == config.slow_rank:
        time.sleep(config.slow_ms / 1000)
    return batch(config, rank)


@functools.lru_cache(maxsize=1)
def batch(config, rank):
    return samples(config, rank)


def samples(config, rank):
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + 1 + rank)
    drawn = torch.randn(config.batch, config.width, generator=generator, device="cpu")
    return drawn.to(device=torch.get_default_device(), dtype=DTYPES[config.dtype])


@functools.lru_cache(maxsize=1)  # a sweep over caps asks for the same one each time
def one_process(config, k):
    """Return the gradient of one process in float64 on the batches of all ranks, a vector for each parameter."""
    total = 0.0
    for rank in range(k):  # what a rank leaves out has no part in its loss
        model = build(config, rank, dtype=torch.float64)
        (model(samples(config, rank).double()).square().mean() / k).backward()
        total = total + gradients_of(model)
    return numpy.split(total, numpy.cumsum([p.numel() for p in model.parameters()])[:-1])


def gradients_of(model):
    """Return all gradients as one float64 vector, zeros where the forward did not use a parameter."""
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


class Ledger:
    """Makes the models, says which one is next, and notes when what happened. Its own collectives come between the
    iterations or after them all.
    """

    def __init__(self, config):
        self.config, self.rank, self.k = config, dist.get_rank(), dist.get_world_size()
        self.alone, self.timed, self.traced = (build(config, self.rank) for _ in range(3))
        wrap = IMPLEMENTATIONS[config.implementation]
        self.nets = {"alone": (self.alone, lambda: None), "timed": wrap(self.timed, config)}
        self.nets["traced"] = wrap(self.traced, config)
        self.trace = BucketTrace(self.nets["traced"][0], self.buckets_by_hand())
        self.marks = {kind: [] for kind in self.nets}  # of each iteration: [data, forward, backward, done]
        self.buckets = []  # of each traced iteration

    def buckets_by_hand(self):
        parameters, finish = [*self.traced.parameters()], self.nets["traced"][1]
        if self.config.implementation == "bucketed":
            return finish.__self__.buckets
        return {"per_tensor": [[p] for p in parameters], "flat": [parameters]}.get(self.config.implementation)

    def iterations(self):
        """Yield (net, finish) for each iteration."""
        warm_up = 3 if self.config.static_graph else 2  # after one, or two, DDP rebuilds its buckets
        for kind in ["alone", *["timed", "traced"] * warm_up]:
            yield from self.iteration(kind)
        yield from self.counted()
        for kind in [*["alone", "timed"] * self.config.repeats, *["traced"] * TRACED]:
            yield from self.iteration(kind)

    def iteration(self, kind, *, counted=False):
        self.now = {}
        net, finish = self.nets[kind]
        if not counted:  # a barrier would be counted too
            dist.barrier()
        quiet = self.config.no_sync and kind != "alone"
        with self.trace.iteration() if kind == "traced" else contextlib.nullcontext():
            with net.no_sync() if quiet else contextlib.nullcontext():
                self.note("data")
                yield net, finish
        self.marks[kind].append(self.now)
        if kind == "traced":
            self.buckets.append(self.trace.buckets)
        if not counted:
            net.zero_grad()

    def counted(self):
        """The iteration whose bytes and gradients are read."""
        meter, issued = Meter(), collectives.issued()
        yield from self.iteration("timed", counted=True)
        self.all_reduces, self.wire_bytes = collectives.issued() - issued, meter.read()[0]
        self.gradients = gradients_of(self.timed)
        self.digest = fingerprint.digest(p.grad for p in self.timed.parameters() if p.grad is not None)
        self.timed.zero_grad()

    def note(self, what):
        self.now[what] = clock.now()

    def report(self):
        """Return what this rank found, its times on rank 0's clock.

        times                          seconds of each repeat over all ranks: backward, compute, step
        communication, lateness        of each traced iteration: seconds in which a bucket is in flight between all
                                       ranks, and by how much this rank comes to the first bucket later than the first
        timeline, buckets              of the traced iteration that is nearest to the median backward, in seconds from
                                       the latest start of backward over ranks
        first_iteration_bucket_bytes   in the order of sending
        held_bytes                     of gradients and buckets together, after a backward
        """
        self.trace.close()
        offset = clock.offset()
        mine = {
            "marks": {
                kind: [timeline.shifted(one, offset.seconds) for one in of_kind] for kind, of_kind in self.marks.items()
            },
            "buckets": [
                [timeline.shifted(vars(bucket), offset.seconds) for bucket in of_one]
                for of_one in self.buckets[-TRACED:]
            ],
        }
        everyone = [None] * self.k
        dist.all_gather_object(everyone, mine)
        repeats = self.config.repeats
        alone, timed, traced = (
            list(zip(*(rank["marks"][kind][-count:] for rank in everyone), strict=True))
            for kind, count in (("alone", repeats), ("timed", repeats), ("traced", TRACED))
        )
        buckets = list(zip(*(rank["buckets"] for rank in everyone), strict=True))
        backward = [timeline.backward_s(one) for one in timed]
        near = statistics.median(backward)
        shown = min(range(TRACED), key=lambda i: abs(timeline.backward_s(traced[i]) - near))
        zero = max(marks["backward"] for marks in traced[shown])
        here = [timeline.shifted(bucket, -zero) for bucket in buckets[shown][self.rank]]
        return {
            "times": {
                "backward": backward,
                "compute": [timeline.backward_s(one) for one in alone],
                "step": [max(m["done"] for m in one) - min(m["data"] for m in one) for one in timed],
            },
            "communication": [timeline.in_flight_s(one) for one in buckets],
            "lateness": [timeline.lateness_s(one, self.rank) for one in buckets],
            "timeline": timeline.events(timeline.shifted(traced[shown][self.rank], -zero), here),
            "buckets": here,
            "first_iteration_bucket_bytes": [bucket.bytes for bucket in self.buckets[0]],
            "gradient_bytes": sum(p.nbytes for p in self.timed.parameters()),
            "parameters": len([*self.timed.parameters()]),
            "gradients_share_buckets": self.trace.shares_memory,
            "held_bytes": self.trace.held_bytes,
            "all_reduces": self.all_reduces,
            "wire_bytes": self.wire_bytes,
            "digest": self.digest,
            "clock": vars(offset),
            "max_rel_error": self.max_rel_error() if self.rank == 0 else None,
        }

    def max_rel_error(self):
        """Return the largest max|difference| / max|true| over parameter tensors, the truth being one process's."""
        model_of = ("layers", "width", "batch", "small_tensors", "backwards", "unused_on", "seed", "dtype")
        true = one_process(Config(**{name: getattr(self.config, name) for name in model_of}), self.k)
        found = numpy.split(self.gradients, numpy.cumsum([len(one) for one in true])[:-1])
        scales = [abs(one).max() or 1.0 for one in true]  # all zeros where no rank uses a parameter
        return max(float(abs(one - other).max() / scale) for one, other, scale in zip(true, found, scales, strict=True))
