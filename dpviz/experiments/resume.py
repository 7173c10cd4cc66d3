"""What must a checkpoint hold? Written by k ranks, read by another number of them, with torch.distributed.checkpoint.

    python -m dpviz run resume --world-size 4 --resume-world-size 2 --without optimizer --json

Built in lesson 06.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.nn import functional as F

from dpviz import data, seeds
from dpviz.experiments.equivalence import DTYPES
from dpviz.questions.resume import Config

__all__ = ["Config", "experiment", "stop_and_resume"]


def stop_and_resume(config):
    """Return {"losses": of this rank without interruption, "resumed": of this rank after the checkpoint, if it
    resumed}.
    """
    seeds.seed_by_rank(config.seed)
    everybody, few = dist.group.WORLD, dist.new_group(list(range(config.resume_world_size)))
    rest, resumed = range(config.steps - config.stop_after), []
    with shared_directory() as directory:
        training = Training(config)
        losses = [training.update(everybody) for _ in range(config.stop_after)]
        checkpoint.save(training.state(), checkpoint_id=directory)
        losses += [training.update(everybody) for _ in rest]
        if dist.get_rank() < config.resume_world_size:
            training = Training(config)  # a new process would begin like this
            training.load(directory, without=config.without, group=few)
            resumed = [training.update(few) for _ in rest]
        dist.barrier()
    return {"losses": losses, "resumed": resumed}


experiment = stop_and_resume  # the name that the command line calls it by


@contextlib.contextmanager
def shared_directory():
    """A directory that all ranks of one host know; rank 0 makes it, and removes it at the end."""
    name = [tempfile.mkdtemp(prefix="dpviz-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    try:
        yield name[0]
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(name[0], ignore_errors=True)


class Training:
    """A model, AdamW with a cosine schedule, and the position in the data."""

    def __init__(self, config):
        self.config, self.position = config, 0
        with torch.random.fork_rng(devices=[]):  # each rank's own stream, which dropout draws from, goes on
            torch.manual_seed(config.seed)
            layers = nn.Linear(64, 32), nn.GELU(), nn.Dropout(config.dropout), nn.Linear(32, 10)
        self.model = nn.Sequential(*layers).to(DTYPES[config.dtype])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), config.lr, weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config.steps)

    def update(self, group):
        """Make one update on the ranks of `group`, each with its part of the global batch. Returns this rank's loss."""
        size = self.config.global_batch // dist.get_world_size(group)
        start = self.position + dist.get_rank(group) * size
        x, y = data.samples(data.load("digits"), start, start + size, self.config.seed)
        loss = F.cross_entropy(self.model(x.to(DTYPES[self.config.dtype])), y)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)
        self.optimizer.step()
        self.scheduler.step()
        self.position += self.config.global_batch
        return loss.item()

    def state(self):
        """Return all of it; the random state is each rank's own, and so has a name a rank."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "data_position": self.position,
            f"rng_of_rank_{dist.get_rank()}": torch.get_rng_state(),
        }

    def load(self, directory, *, without, group):
        """Take over what the checkpoint holds, but one part. The reader need not be as many as the writers were."""
        self._grow_moments()
        state = self.state()
        checkpoint.load(state, checkpoint_id=directory, process_group=group)
        self.model.load_state_dict(state["model"])
        if without == "optimizer":
            self.optimizer.state.clear()
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        if without != "scheduler":
            self.scheduler.load_state_dict(state["scheduler"])
        self.optimizer.param_groups[0]["lr"] = self.scheduler.get_last_lr()[0]
        if without != "data_position":
            self.position = state["data_position"]
        if without != "rng":
            torch.set_rng_state(state[f"rng_of_rank_{dist.get_rank()}"])

    def _grow_moments(self):
        """AdamW makes its moments in its first step; loading needs them to be there, to be read into."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
