"""Which steps must be the same on every rank? A training run with one fault that can be switched on.

    python -m dpviz run optimizer_state --fault skipped_step --fault-rank 2 --json

Built in lesson 06.
"""

from __future__ import annotations

import datetime
import math
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.nn import functional as F

from dpviz import data, seeds
from dpviz.experiments.equivalence import DTYPES
from dpviz.experiments.resume import shared_directory
from dpviz.measure import fingerprint
from dpviz.parallel.ddp import all_reduce_gradients
from dpviz.questions.optimizer_state import MAX_NORM, Config
from dpviz.records import Step

__all__ = ["Config", "experiment", "train_with_fault"]

COLLECTIVE_TIMEOUT_S = 2  # a left-out collective is found this soon


def train_with_fault(config):
    """Train; yields a Step an update, with the fingerprints that the checks compare."""
    rank, k, fault = dist.get_rank(), dist.get_world_size(), Fault(config)
    replica = first_replica(config, fault)
    with shared_directory() as directory:
        checkpoints = Checkpoints(directory, fault)
        for step in range(config.steps):
            if fault.here("left_out_collective", step):
                continue
            replica = checkpoints.maybe_resume(replica, step)
            x, y = batch(config, step, rank, k)
            total = len(y) if fault.from_here("token_weights_differ", step) else k * len(y)
            loss = F.cross_entropy(replica.model(x), y, reduction="sum") * k / total
            (loss * replica.scaler.scale * fault.loss_factor(step)).backward()
            if not fault.in_step("no_all_reduce", step):
                all_reduce_gradients(replica.model)
            update(replica, step, fault)
            checkpoints.maybe_save(replica, step)
            values = {**replica.fingerprints(step), "tokens": total}
            yield Step(step=step, loss=loss.item(), values=values)


experiment = train_with_fault  # the name that the command line calls it by


def update(replica, step, fault):
    """Unscale, decide, clip, step: what every rank must do alike once the gradients are."""
    parameters = list(replica.model.parameters())
    fault.before_update(replica, step)
    for parameter in parameters:
        parameter.grad /= replica.scaler.scale
    replica.gradients = fingerprint.digest(parameter.grad for parameter in parameters)
    overflow = overflowed(parameters) and not fault.on_every_rank("unchecked_infinity")
    replica.norm = 0.0
    if not overflow and not fault.here("skipped_step", step):
        replica.norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM).item()
        replica.optimizer.step()
        replica.updates += 1
    replica.optimizer.zero_grad()
    replica.scaler.update(overflow)
    for _ in range(fault.schedule_steps(step)):
        replica.scheduler.step()
    fault.after_update(replica, step)


def overflowed(parameters):
    return not all(parameter.grad.isfinite().all() for parameter in parameters)


class Fault:
    """Whether the fault named is the one switched on, and concerns this rank in this step; and what it does."""

    def __init__(self, config):
        self.config, self.mine = config, dist.get_rank() == config.fault_rank

    def on_every_rank(self, name):
        return self.config.fault == name

    def on_this_rank(self, name):
        return self.config.fault == name and self.mine

    def in_step(self, name, step):
        return self.config.fault == name and step == self.config.fault_step

    def here(self, name, step):
        return self.in_step(name, step) and self.mine

    def from_here(self, name, step):
        return self.on_this_rank(name) and step >= self.config.fault_step

    def before_update(self, replica, step):
        if self.here("overflow_on_one_rank", step):
            next(replica.model.parameters()).grad[0, 0] = math.inf
        if self.here("lr_differs", step):
            replica.optimizer.param_groups[0]["lr"] *= 2
            replica.scheduler.base_lrs[0] *= 2

    def loss_factor(self, step):
        return math.inf if self.here("unchecked_infinity", step) else 1

    def schedule_steps(self, step):
        k = dist.get_world_size()
        if self.from_here("schedule_by_own_tokens", step):  # k updates until it has seen as much as all do in one
            return (step - self.config.fault_step) % k == k - 1
        return k if self.on_every_rank("scheduler_steps_k_times") else 1

    def after_update(self, replica, step):
        if self.here("edited_parameter", step):
            [*replica.model.parameters()][-1].data[-1] += 1


class LossScaler:
    """Dynamic loss scaling as torch.amp.GradScaler does it: halved upon overflow, doubled after a few updates without
    one.
    """

    GROWTH_INTERVAL = 3

    def __init__(self, scale=2.0**10, good=0):
        self.scale, self.good = scale, good

    def update(self, overflow):
        self.good = 0 if overflow else self.good + 1
        if overflow:
            self.scale /= 2
        elif self.good == self.GROWTH_INTERVAL:
            self.scale, self.good = self.scale * 2, 0


def first_replica(config, fault):
    """Return the replica to begin with: the same on every rank, and then a stream of random numbers for each."""
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    replica = Replica(config, seed=config.seed + fault.on_this_rank("different_init"))
    seeds.reset(config.seed) if fault.on_every_rank("same_dropout_mask") else seeds.seed_by_rank(config.seed)
    return replica


class Replica:
    """What every rank holds: model, optimizer, schedule, loss scale and the number of updates."""

    def __init__(self, config, *, seed):
        self.config = config
        with torch.random.fork_rng(devices=[]):  # each rank's own stream, which dropout draws from, goes on
            torch.manual_seed(seed)
            layers = nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 10)
        self.model = nn.Sequential(*layers).to(DTYPES[config.dtype])
        optimizers = {"sgd": torch.optim.SGD, "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.0)}
        self.optimizer = optimizers[config.optimizer](self.model.parameters(), config.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config.steps)
        self.scaler, self.updates, self.mask, self.gradients, self.norm = LossScaler(), 0, "", "", 0.0
        self.initial, self.resumed_from, self.seen = fingerprint.digest(self.model.parameters()), None, ("", 0)
        self.model.register_forward_pre_hook(
            lambda module, x: setattr(self, "seen", (fingerprint.digest(x), len(x[0])))
        )
        self.model[2].register_forward_hook(
            lambda module, x, out: setattr(self, "mask", fingerprint.digest([out == 0]))
        )

    def fingerprints(self, step):
        moments = [
            value for state in self.optimizer.state.values() for value in state.values() if torch.is_tensor(value)
        ]
        return {
            "number": step,
            "step": self.updates,
            "lr": self.optimizer.param_groups[0]["lr"],
            "scaler": self.scaler.scale,
            "norm": self.norm,
            "gradients": self.gradients,
            "optimizer": fingerprint.digest(moments),
            "parameters": fingerprint.digest(self.model.parameters()),
            "sample": fingerprint.sample(self.model.parameters()),
            "probe": fingerprint.probe(self.model.parameters(), seed=step),
            "checksum": fingerprint.checksum(self.model.parameters()),
            "dropout": self.mask,
            "initial": self.initial,
            "resumed_from": self.resumed_from,
            "batch": self.seen[0],
            "samples": self.seen[1],
            "random_state": fingerprint.digest([torch.get_rng_state()]),
        }

    def state(self, *, without=()):
        """Return all that a resumed run needs, in the form of torch.distributed.checkpoint."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": {"scale": self.scaler.scale, "good": self.scaler.good},
            "updates": self.updates,
        }
        return {name: part for name, part in parts.items() if name not in without}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.optimizer.param_groups[0]["lr"] = self.scheduler.get_last_lr()[0]
        self.updates = state["updates"]
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "scaler" in state:
            self.scaler = LossScaler(**state["scaler"])


class Checkpoints:
    """Real checkpoints in a directory that all ranks share, by torch.distributed.checkpoint; written and read only
    where the fault is about them.
    """

    LEFT_OUT = {  # by the fault rank
        "stale_checkpoint": (),
        "resume_without_optimizer": ("optimizer",),
        "resume_without_scaler": ("scaler",),
    }

    def __init__(self, directory, fault):
        self.directory, self.fault = directory, fault
        self.at = fault.config.fault_step if fault.config.fault in self.LEFT_OUT else None

    def maybe_save(self, replica, step):
        """After the two updates before the one in which the run is resumed."""
        if self.at is not None and step in (self.at - 2, self.at - 1):
            checkpoint.save(replica.state(), checkpoint_id=f"{self.directory}/{step}")

    def maybe_resume(self, replica, step):
        if step != self.at:
            return replica
        newest = step - 1 - self.fault.here("stale_checkpoint", step)
        left_out = self.LEFT_OUT[self.fault.config.fault] if self.fault.mine else ()
        return resumed(replica, f"{self.directory}/{newest}", without=left_out)


def resumed(replica, checkpoint_id, *, without):
    """Return a new Replica with what the checkpoint holds, as a restarted process would."""
    fresh = Replica(replica.config, seed=12345)
    state = replica.state(without=without)  # the shapes to read into; every value is overwritten
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # of no_dist: a rank's own file is wanted
        checkpoint.load(state, checkpoint_id=checkpoint_id, no_dist=True)
    fresh.load(state)
    fresh.initial, fresh.resumed_from = replica.initial, {"version": state["updates"], "parts": sorted(state)}
    return fresh


def batch(config, step, rank, k):
    start = (step * k + rank) * config.micro_batch
    x, y = data.samples(data.load("digits"), start, start + config.micro_batch, config.seed)
    return x.to(DTYPES[config.dtype]), y
