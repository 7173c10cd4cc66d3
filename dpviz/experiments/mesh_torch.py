"""The same training as `mesh` by torch's own classes: DeviceMesh, parallelize_module and fully_shard.

Built in lesson 10.
"""

from __future__ import annotations

import warnings

from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dpviz import models
from dpviz.experiments import engines
from dpviz.experiments.mesh import Mesh, build, my_micro_batches
from dpviz.questions.base import WrongValue
from dpviz.records import Step


def experiment_with_torch(config):
    """Train `config.steps` updates. Yields a Step an update. Raises ValueError for a pipeline, context or expert axis.

    On one axis fully_shard divides all model state along dp; on two it is HSDP: it divides along the second and copies
    along the first.
    """
    if config.pp * config.cp * config.separate_ep > 1:
        raise WrongValue("torch's classes are shown for dp, tp and shard alone. Let pp, cp and ep be 1.")
    warnings.filterwarnings("ignore", message=".*returned a view tensor")  # nothing here works in place
    mesh, model = Mesh(config), build(config)
    if config.tp > 1:
        for layer in model.layers:
            parallelize_module(layer, mesh.device_mesh["tp"], {"hidden": ColwiseParallel(), "out": RowwiseParallel()})
    fully_shard(model, mesh=mesh.device_mesh["replicate", "shard"] if config.shard > 1 else mesh.device_mesh["dp"])
    optimizer = engines.make_optimizer(config, model.parameters())
    for step in range(config.steps):
        batches, loss = my_micro_batches(config, mesh, step), 0.0
        for number, (_, x, y) in enumerate(batches, start=1):
            model.set_requires_gradient_sync(number == len(batches))
            part = models.loss(model, x, y) / len(batches)
            part.backward()
            loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        yield Step(step=step, loss=loss)
    mesh.close()
