"""Which dimensions enter the global batch? One model trained on a mesh of ranks (data, tensor, pipeline and context
parallel), beside one process on the whole batch.

    python -m dpviz run mesh --dp 4 --tp 2 --pp 2 --micro-batch 2 --accumulation-steps 8 --json

Experts are not computed: along ep there are groups of ranks, no more. Along cp tokens are divided, which is all there
is to do for a perceptron; attention would send keys and values along it.

Built in lesson 10.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from dpviz import data, models
from dpviz.experiments import engines
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.measure import clock, wire
from dpviz.measure.groups import GroupMeter
from dpviz.measure.memory import distinct_bytes
from dpviz.parallel.hybrid import HybridSharded, Replicated, average_gradients
from dpviz.parallel.pipeline import Pipeline
from dpviz.parallel.tensor_parallel import ColumnParallel, RowParallel
from dpviz.questions.mesh import LENGTH, Config
from dpviz.records import COUNTED, Step

__all__ = ["Config", "experiment"]


def experiment(config):
    """Train `config.steps` updates on a mesh. Yields a Step an update; only last stages know a loss.

    Among the calls of the run is one all_to_all in each group of more than one rank, by which the ledger's meter learns
    the group's connections; facts of a step leave it out.
    """
    mesh = Mesh(config)  # a process group for each axis: mesh.group("dp")
    part = my_part(build(config), mesh)  # some of the layers (pp), and of each matrix a part (tp)
    pipeline = make_pipeline(config, part, mesh)
    copies = make_copies(config, part, mesh)  # the ranks that hold the same part
    ledger = Ledger(config, mesh, part, pipeline, copies)
    for step in range(config.steps):
        batches = my_micro_batches(config, mesh, step)  # which samples, dp alone decides
        ledger.begin(batches)
        copies.gather()
        loss = pipeline.train([(x, y) for _, x, y in batches])
        if mesh.size("cp") > 1:
            average_gradients(part, mesh.group("cp"))  # tokens of the same samples
        ledger.after_backward()
        copies.reduce()  # in the part's own dp group
        ledger.before_step()
        copies.step()
        ledger.end(loss)
        yield Step(step=step, loss=loss)
    return ledger.report()


class Mesh:
    """A DeviceMesh with the Config's axes, and the groups that lie across these."""

    def __init__(self, config):
        self.axes, device = config.axes(), torch.get_default_device().type
        self.device_mesh = init_device_mesh(device, tuple(self.axes.values()), mesh_dim_names=tuple(self.axes))
        self.groups = {axis: self.device_mesh.get_group(axis) for axis in self.axes}
        for axis, lists in config.more_groups().items():
            self.groups[axis], _ = dist.new_subgroups_by_enumeration(lists)
        self.at = {axis: dist.get_rank(group) for axis, group in self.groups.items()}

    def group(self, axis):
        return self.groups[axis]

    def size(self, axis):
        return dist.get_world_size(self.groups[axis])

    def close(self):
        """Let go of the groups, so that launch after launch does not heap up connections. A launch keeps these open
        until every rank has returned and their bytes are read: no rank has to wait for another here.
        """
        for group in self.groups.values():
            if group is not dist.group.WORLD:  # which stands in for an axis that has all ranks
                dist.destroy_process_group(group)


def build(config, dtype=None):
    """Return the whole model, equal on every rank."""
    sizes = {"layers": config.layers, "width": config.width}
    return models.build("deep", data.load("text"), seed=config.seed, dtype=dtype or DTYPES[config.dtype], **sizes)


def my_part(model, mesh):
    """Return this rank's stage of `model`, with its part of the two matrices of each layer."""
    stage, stages = mesh.at["pp"], mesh.size("pp")
    count = len(model.layers) // stages
    mine = [shared(layer, mesh.group("tp")) for layer in model.layers[stage * count : (stage + 1) * count]]
    first = [model.embedding] if stage == 0 else []
    last = [model.head] if stage == stages - 1 else []
    return nn.Sequential(*first, *mine, *last)


def shared(layer, group):
    """Return a residual layer of which this rank computes a part."""
    if dist.get_world_size(group) == 1:
        return layer
    part = models.Layer(layer.out.out_features)
    part.hidden, part.out = ColumnParallel(layer.hidden, group=group), RowParallel(layer.out, group=group)
    return part


def make_pipeline(config, part, mesh):
    """Return what passes micro-batches through the stages, of which `part` is this rank's."""

    def loss(out, y):
        return F.cross_entropy(out.to(torch.promote_types(out.dtype, torch.float32)).flatten(0, -2), y.flatten())

    def shape(x):
        return (*x.shape, config.width)

    return Pipeline(part, loss=loss, shape=shape, group=mesh.group("pp"), dtype=DTYPES[config.dtype])


def make_copies(config, part, mesh):
    """Return what averages the gradients of `part` with the ranks that hold it too, and updates it."""
    optimizer = partial(engines.make_optimizer, config)
    if config.shard == 1:
        return Replicated(part, optimizer=optimizer, group=mesh.group("dp"))
    return HybridSharded(part, optimizer=optimizer, shard=mesh.group("shard"), replicate=mesh.group("replicate"))


def my_micro_batches(config, mesh, step):
    """Return the K micro-batches of this rank, (numbers of the samples, x, y): its dp rank chooses the samples, its cp
    rank the tokens.
    """
    mine = config.accumulation_steps * config.micro_batch
    start = (step * config.dp + mesh.at["dp"]) * mine
    share = LENGTH // mesh.size("cp")
    tokens = slice(mesh.at["cp"] * share, (mesh.at["cp"] + 1) * share)
    parts = (one.split(config.micro_batch) for one in numbered(config, start, start + mine))
    return [(numbers, x[:, tokens], y[:, tokens]) for numbers, x, y in zip(*parts, strict=True)]


def numbered(config, start, stop):
    """Return (numbers of the samples in the data set, x, y) of a piece of the stream."""
    dataset = data.load("text")
    numbers, _ = data.samples(replace(dataset, x=torch.arange(len(dataset))), start, stop, config.seed)
    x, y = (one[numbers.cpu()].to(numbers.device) for one in (dataset.x, dataset.y))
    return numbers, x, y


class Ledger:
    """Notes what a rank read, sent and held; within a step it calls no collective.

    read         [sample, position] of every token of the first step
    sent         {axis: bytes} of the last step
    bytes        {kind: bytes} of model state between the last reduction and its step
    differences  the largest from one process: of this rank's first gradient, of its parameters after the first step and
                 after the last; infinite where a number is none
    """

    def __init__(self, config, mesh, part, pipeline, copies):
        self.config, self.mesh, self.part, self.pipeline, self.copies = config, mesh, part, pipeline, copies
        self.meter = GroupMeter(mesh.groups)
        self.losses, self.seconds, self.read, self.first = [], [], None, []

    def begin(self, batches):
        if self.read is None:
            width = LENGTH // self.config.cp
            places = range(self.mesh.at["cp"] * width, (self.mesh.at["cp"] + 1) * width)
            samples = torch.cat([numbers for numbers, _, _ in batches]).tolist()
            self.read = [[sample, place] for sample in samples for place in places]
        self.meter.read()
        self.pipeline.sent, self.began = 0, clock.now()

    def after_backward(self):
        """Messages between stages are in no record: where the kernel does not count, the pipeline itself does."""
        self.by_hand = self.pipeline.sent if wire.how() == COUNTED else 0

    def before_step(self):
        self.bytes = {kind: distinct_bytes(tensors) for kind, tensors in self.copies.held().items()}
        if not self.losses:
            self.first.append(flat(tensor.grad for tensor in self.updated()))

    def end(self, loss):
        self.seconds.append(clock.now() - self.began)
        self.sent, _ = self.meter.read()
        self.sent["pp"] += self.by_hand
        if not self.losses:
            self.first.append(flat(self.updated()))
        self.losses.append(loss)

    def updated(self):
        """Return the tensors that this rank's optimizer updates: parameters, or a shard of them."""
        return [tensor for group in self.copies.optimizer.param_groups for tensor in group["params"]]

    def report(self):
        config, mesh = self.config, self.mesh
        references, mine = one_process(config), [*self.first, flat(self.updated())]
        apart = [abs(a - self.counterpart(b)) for a, b in zip(mine, references, strict=True)]
        report = {
            "losses": self.losses,
            "seconds": self.seconds,
            "read": self.read,
            "sent": self.sent,
            "bytes": self.bytes,
            "at": mesh.at,
            "groups": {axis: dist.get_process_group_ranks(group) for axis, group in mesh.groups.items()},
            "parameters": sum(p.numel() for p in self.part.parameters()),
            "whole_parameters": sum(p.numel() for p in references[-1].parameters()),
            "differences": [float(numpy.nan_to_num(one, nan=numpy.inf).max()) for one in apart],
        }
        mesh.close()
        return report

    def counterpart(self, model):
        """Return what this rank would update of `model`, as one vector."""
        mine = torch.from_numpy(flat(my_part(model, self.mesh).parameters()))
        s = self.config.shard
        if s > 1:
            mine = F.pad(mine, (0, -len(mine) % s)).chunk(s)[self.mesh.at["shard"]]
        return mine.numpy()


def one_process(config):
    """Return three models of one process that trains on the whole batch in float64: one with its first gradient in the
    place of parameters, one as it is after the first step, and one after the last.
    """
    gradient, first, model = (build(config, torch.float64) for _ in range(3))
    optimizer = engines.make_optimizer(config, model.parameters())
    for step in range(config.steps):
        optimizer.zero_grad()
        _, x, y = numbered(config, step * config.samples, (step + 1) * config.samples)
        models.loss(model, x, y).backward()
        optimizer.step()
        if step == 0:
            places = zip(gradient.parameters(), first.parameters(), model.parameters(), strict=True)
            for of_gradient, after, parameter in places:
                of_gradient.data, after.data = parameter.grad.clone(), parameter.detach().clone()
    return gradient, first, model
