"""What trains a model under a ZeRO stage, by hand or by torch's classes, behind the same methods.

micro_batch(x, y, last=...)   forward and backward of one of K micro-batches; returns its loss over K
step()                        update the parameters
held()                        {kind: tensors} of the model state that this rank holds now
gathered()                    whole parameters of which this rank keeps a shard: they hold memory while they are used
leaves()                      the tensors that autograd brings gradients to
sizes()                       numbers of elements of what is divided one by one, and what this rank got of it
ring                          counts what its reduce-scatter sends
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dpviz import models
from dpviz.parallel import ring, zero
from dpviz.parallel.fsdp2_ring import use_reduce_scatter


def make(config, model, *, stage):
    """Return the engine of this stage and implementation for `model`, which it changes."""
    if config.implementation == "by_hand":
        return ByHand(config, model, stage)
    if stage < 2:
        return Replicated(config, model, stage)
    return FullySharded(config, model, layers=models.units(model), reshard=stage == 3, reshard_rest=stage == 3)


def optimizer_of(config):
    """Return an optimizer's class and arguments. Not foreach, which holds temporaries as large as all parameters."""
    if config.optimizer == "sgd":
        return torch.optim.SGD, {"lr": config.lr, "foreach": False}
    return torch.optim.AdamW, {"lr": config.lr, "weight_decay": 0.0, "foreach": False}


def make_optimizer(config, parameters):
    kind, arguments = optimizer_of(config)
    return kind(parameters, **arguments)


class Ring:
    """A ring's reduce-scatter that counts: torch records collectives, and no messages from rank to rank."""

    def __init__(self):
        self.calls = self.sent = 0

    def reduce_scatter(self, whole):
        self.calls += 1
        return ring.reduce_scatter(whole, exchange=self._exchange)

    def into_shard(self, shard, whole):
        shard.copy_(self.reduce_scatter(whole))

    def read(self):
        """Return (calls, bytes sent) since the last reading."""
        calls, sent, self.calls, self.sent = self.calls, self.sent, 0, 0
        return calls, sent

    def _exchange(self, outgoing, incoming):
        self.sent += outgoing.nbytes
        ring.exchange(outgoing, incoming)


class ByHand:
    """dpviz.parallel.zero."""

    def __init__(self, config, model, stage):
        self.model, self.K, self.stage, self.ring = model, config.accumulation_steps, stage, Ring()
        self.zero = zero.STAGES[stage](
            model,
            optimizer=lambda parameters: make_optimizer(config, parameters),
            layers=models.units(model),
            master_dtype=torch.float32 if config.mixed_precision else None,
            max_norm=config.max_norm or None,
            reduce_scatter=self.ring.into_shard if config.reduce_scatter == "ring" else zero.reduce_scatter,
        )

    def micro_batch(self, x, y, *, last):
        loss = models.loss(self.model, x, y) / self.K
        self.zero.backward(loss)
        return loss.item()

    def step(self):
        self.zero.step()

    def held(self):
        return self.zero.held()

    def gathered(self):
        return [unit.whole for unit in self.zero.units] if self.stage == 3 else []

    def leaves(self):
        return [parameter for unit in self.zero.trained for parameter in unit.parameters]

    def sizes(self):
        return {"unit_sizes": [unit.whole.numel() - unit.padding for unit in self.zero.units]}


class OfTorch:
    def __init__(self, config, model, optimizer):
        self.K, self.optimizer = config.accumulation_steps, optimizer
        self.max_norm = getattr(config, "max_norm", 0.0)  # a question may have no clipping
        self.parameters, self.ring = list(model.parameters()), Ring()

    def step(self):
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held(self):
        return {
            "parameters": [local(parameter) for parameter in self.parameters],
            "gradients": [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None],
            "optimizer": state_tensors(self.inner_optimizer()),
            "master": [],
        }

    def inner_optimizer(self):
        return self.optimizer

    def gathered(self):
        return []

    def leaves(self):
        return self.parameters

    def sizes(self):
        return {"unit_sizes": [parameter.numel() for parameter in self.parameters]}


def state_tensors(optimizer):
    """Return what an optimizer remembers of each parameter, its counter of steps aside."""
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    return [local(value) for value in state if torch.is_tensor(value) and value.ndim]


def local(tensor):
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # to_local() is an operation of its own


class Replicated(OfTorch):
    """DDP; under stage 1 with ZeroRedundancyOptimizer, which gives each rank whole tensors to update."""

    def __init__(self, config, model, stage):
        self.stage = stage
        if stage == 0:
            optimizer = make_optimizer(config, model.parameters())
        else:
            from torch.distributed.optim import ZeroRedundancyOptimizer  # a package that warns when it is imported

            kind, arguments = optimizer_of(config)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, **arguments)
        super().__init__(config, model, optimizer)
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def micro_batch(self, x, y, *, last):
        with nullcontext() if last else self.model.no_sync():
            loss = models.loss(self.model, x, y) / self.K
            loss.backward()
        return loss.item()

    def inner_optimizer(self):
        return self.optimizer.optim if self.stage == 1 else self.optimizer

    def sizes(self):
        mine = [p for group in self.inner_optimizer().param_groups for p in group["params"]]
        return {**super().sizes(), "updated": [p.numel() for p in mine]}


class FullySharded(OfTorch):
    """FSDP2, each of `layers` a group and the rest another; with `reshard` a layer is freed after its forward. None for
    the rest is torch's default, which keeps it.
    """

    def __init__(self, config, model, *, layers, reshard, reshard_rest=None):
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        policy = {"mp_policy": half} if config.mixed_precision else {}
        # where the tensors are: by itself FSDP2 takes them to a GPU, if the machine has one
        policy["mesh"] = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, reshard_after_forward=reshard, **policy)
        fully_shard(model, reshard_after_forward=reshard_rest, **policy)
        self.model = model
        super().__init__(config, model, make_optimizer(config, model.parameters()))
        if config.reduce_scatter == "ring":
            use_reduce_scatter(model, self.ring.reduce_scatter)

    def micro_batch(self, x, y, *, last):
        loss = models.loss(self.model, x, y) / self.K
        loss.backward()
        return loss.item()

    def gathered(self):
        return [whole for one in of_fsdp2(self.model) for whole in one.all_gather_outputs]

    def leaves(self):
        return [one._unsharded_param for one in of_fsdp2(self.model)]  # there from the first step on

    def sizes(self):
        return {**super().sizes(), "shapes": [list(p.shape) for p in self.parameters]}


def of_fsdp2(model):
    """Return FSDP2's own notes on each parameter: private, and nothing else tells what it gathers."""
    wrapped = [module for module in model.modules() if isinstance(module, FSDPModule)]
    groups = [module._get_fsdp_state()._fsdp_param_group for module in wrapped]
    return [one for group in groups if group for one in group.fsdp_params]
