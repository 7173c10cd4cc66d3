"""Gather, use, scatter: a model of which a rank holds a layer only while it is used, by FSDP2 and by hand, beside DDP.

    python -m dpviz run fsdp --reshard-after-forward false --world-size 4 --json

Built in lesson 09.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
import torch.distributed as dist

from dpviz import data, models
from dpviz.experiments import engines
from dpviz.experiments.equivalence import DTYPES, micro_batches
from dpviz.experiments.zero import train_step
from dpviz.measure import clock, timeline, wire
from dpviz.measure.fsdp_trace import fsdp_spans
from dpviz.measure.memory import distinct_bytes, watched
from dpviz.measure.meter import Meter
from dpviz.measure.profiled import profiled
from dpviz.parallel import fsdp
from dpviz.questions.fsdp import Config
from dpviz.records import COUNTED, Event, Step

__all__ = ["Config", "experiment"]


def experiment(config):
    """Train `config.steps` updates, fully sharded; afterwards the same by DDP. Yields a Step an update."""
    ledger = Ledger(config)
    model, optimizer = ledger.sharded()  # by FSDP2, or by hand
    for step in range(config.steps):
        for x, y in ledger.micro_batches(step):  # this rank's part of the global batch
            loss = models.loss(model, x, y) / config.accumulation_steps
            ledger.backward(loss)
        optimizer.step()  # of the shards alone
        optimizer.zero_grad()
        yield Step(step=step, loss=ledger.loss())
    return ledger.report()


class Ledger:
    """Notes what each step sent, held and took; after the last one traces another, and trains the same by DDP."""

    def __init__(self, config):
        self.config, self.meter = config, Meter()
        self.way = (ByHand if config.implementation == "by_hand" else ByTorch)(config, build(config))
        self.offset = clock.offset()
        self.losses, self.seconds, self.part = [], [], 0.0

    def sharded(self):
        """Return (model, optimizer): to be used as if the model were whole."""
        return self.way.model, self.way.optimizer

    def micro_batches(self, step):
        """Yield this rank's K micro-batches of a step, and let gradients be reduced after those that `sync` says."""
        self.meter.read()
        self.way.ring.read()
        self.part, self.begun = 0.0, clock.now()
        batches = micro_batches(self.config, step, dist.get_rank(), dist.get_world_size())
        for number, batch in enumerate(batches, start=1):
            self.way.synchronize(self.config.sync == "every" or number == len(batches))
            yield batch
        self.bytes = {kind: distinct_bytes(tensors) for kind, tensors in self.way.held().items()}

    def backward(self, loss):
        self.way.backward(loss)
        self.part += loss.item()

    def loss(self):
        """Return this rank's loss of the step that ends here."""
        self.seconds.append(clock.now() - self.begun)
        self.sent, self.issued = self.meter.read()
        self.scatters, by_ring = self.way.ring.read()
        self.sent += by_ring if wire.how() == COUNTED else 0
        self.losses.append(self.part)
        return self.part

    def report(self):
        config, way = self.config, self.way
        names = [entry.name for entry in self.issued]
        item = DTYPES[config.dtype].itemsize
        counted = {
            "all_gathers": sum("all_gather" in name or "allgather" in name for name in names),
            # gloo records its reduce-scatter as the all-reduce that it is inside
            "reduce_scatters": self.scatters or sum("reduce" in name for name in names),
        }
        return {
            "losses": self.losses,
            "seconds": self.seconds,
            "wire_bytes": self.sent,
            "bytes": self.bytes,
            "parameters": sum(p.numel() for p in build(config).parameters()),
            "item_bytes": item,
            "wire_item_bytes": 2 if config.mixed_precision else item,
            "groups": len(way.names),
            "group_names": way.names,
            "group_sizes": group_sizes(config)[: len(way.names)],
            "clock": self.offset.how,
            **counted,
            **traced(self, self.offset.seconds),
            "memory": over_a_step(self),
            "losses_of_ddp": losses_of_ddp(config),
        }

    def train_step(self):
        """Train one more step, as `experiment` does."""
        self.way.spans.clear()
        for x, y in self.micro_batches(self.config.steps):
            self.backward(models.loss(self.way.model, x, y) / self.config.accumulation_steps)
        self.way.optimizer.step()
        self.way.optimizer.zero_grad()


def build(config):
    """Return the model that every rank starts from."""
    sizes = {"layers": config.layers, "width": config.width}
    return models.build("deep", data.load(config.data), seed=config.seed, dtype=DTYPES[config.dtype], **sizes)


def wrapped(config, model):
    """Return the layers that are gathered one by one, in the order of use."""
    units = models.units(model)
    return {"each_layer": units, "some_layers": units[1::2], "whole_model": []}[config.wrap]


class ByHand:
    """dpviz.parallel.fsdp."""

    def __init__(self, config, model):
        self.model, self.spans, self.ring = model, [], engines.Ring()
        layers = wrapped(config, model)
        self.sharded = fsdp.FullySharded(
            model,
            layers=layers,
            reshard_after_forward=config.reshard_after_forward,
            prefetch=config.prefetch,
            reduce_scatter=self.ring.reduce_scatter if config.reduce_scatter == "ring" else fsdp.reduce_scatter,
            watch=self.watch,
        )
        self.names = names_of(model, layers)[: len(self.sharded.groups)]
        self.optimizer = engines.make_optimizer(config, self.sharded.shards())
        self.backward = self.sharded.backward

    def watch(self, what, group, start, end):
        self.spans.append((what, self.names[group], start, end))

    def synchronize(self, wanted):
        self.sharded.sync = wanted

    def held(self):
        shards = self.sharded.shards()
        kept = [p.grad for p in self.leaves() if p.grad is not None]
        return {
            "parameters": [shard.detach() for shard in shards],
            "gradients": [shard.grad for shard in shards if shard.grad is not None] + kept,
            "optimizer": engines.state_tensors(self.optimizer),
        }

    def gathered(self):
        return [p.data for p in self.leaves()]

    def leaves(self):
        return [p for group in self.sharded.groups for p in group.parameters]

    def spans_of(self, events):
        return self.spans


class ByTorch(engines.FullySharded):
    """FSDP2. On gloo each of its collectives is waited for where it is called."""

    def __init__(self, config, model):
        layers = wrapped(config, model)
        super().__init__(config, model, layers=layers, reshard=config.reshard_after_forward)
        for number, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 1 + config.prefetch])
            layer.set_modules_to_backward_prefetch(layers[max(0, number - config.prefetch) : number][::-1])
        self.spans, self.names = [], names_of(model, layers)
        if config.wrap == "each_layer":
            self.names.pop()  # nothing is left for the model itself

    def synchronize(self, wanted):
        self.model.set_requires_gradient_sync(wanted)

    def backward(self, loss):
        loss.backward()

    def held(self):
        held = super().held()
        kept = [grad for one in engines.of_fsdp2(self.model) if (grad := _whole_gradient(one)) is not None]
        return {**held, "gradients": held["gradients"] + kept}

    def spans_of(self, events):
        return fsdp_spans(events)


def _whole_gradient(one):
    """Return the gradient that FSDP2 keeps whole for a parameter while it does not reduce, None where there is none."""
    parameter = getattr(one, "_unsharded_param", None)  # there from the first forward on
    return one.unsharded_accumulated_grad if parameter is None or parameter.grad is None else parameter.grad


def names_of(model, layers):
    """Return the layers' names within the model, and "the rest"."""
    names = {module: name for name, module in model.named_modules()}
    return [names[layer] for layer in layers] + ["the rest"]


def group_sizes(config):
    """Return how many parameters each group has whole: those of the layers, and what is left."""
    model = build(config)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in wrapped(config, model)]
    return [*sizes, sum(p.numel() for p in model.parameters()) - sum(sizes)]


def losses_of_ddp(config):
    """Return this rank's losses under torch's DDP, on the same data from the same start."""
    ddp = engines.Replicated(config, build(config), stage=0)
    return [train_step(config, ddp, step) for step in range(config.steps)]


def traced(ledger, shift):
    """Return the timeline of one more step on this rank, from the moment at which the last rank began it."""
    way = ledger.way
    dist.barrier()
    begun = clock.now()
    with profiled() as events:
        ledger.train_step()
    start = torch.tensor(begun + shift, dtype=torch.float64)
    dist.all_reduce(start, op=dist.ReduceOp.MAX)
    zero = start.item() - shift
    lanes = {"forward": "compute", "backward": "compute", "gather": "gather", "scatter": "scatter", "wait": "wait"}
    places = {name: number for number, name in enumerate(way.names)}
    spans = [(what, name or "the rest", start - zero, end - zero) for what, name, start, end in way.spans_of(events)]
    under_way = [(event.start_s - zero, event.end_s - zero) for event in events if event.name == "gloo:all_gather"]
    waits = [(start, end) for what, _, start, end in spans if what == "wait"]
    return {
        "timeline": [
            asdict(Event(name=f"{what} {name}", start_s=start, end_s=end, lane=lanes[what]))
            for what, name, start, end in spans
            if what in lanes
        ],
        "whole": [
            {"unit": places[name], "from_s": start, "to_s": end} for what, name, start, end in spans if what == "whole"
        ],
        "gather_s": timeline.covered_s(under_way),
        "waiting_s": timeline.both_s(under_way, waits),
    }


def over_a_step(ledger):
    """Return the bytes of all tensors over one more step, see Watch.over_time."""
    way = ledger.way
    with watched(way.held, gathered=way.gathered(), leaves=way.leaves()) as watch:
        ledger.train_step()
    return watch.over_time()
