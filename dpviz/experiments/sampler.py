"""Which samples does each rank see? Two epochs of torch's DistributedSampler.

    python -m dpviz run sampler --dataset-size 10 --world-size 4 --json

Built in lesson 02.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from dpviz.questions.sampler import Config

__all__ = ["Config", "experiment"]


def experiment(config):
    """Return {"epochs": [indices of this rank in epoch 0, in epoch 1]}."""
    sampler = DistributedSampler(range(config.dataset_size), seed=config.seed, drop_last=config.drop_last)
    epochs = []
    for epoch in (0, 1):
        if config.set_epoch == "yes":
            sampler.set_epoch(epoch)  # else every epoch has the order of the first
        elif config.set_epoch == "mismatched":
            sampler.set_epoch(epoch + dist.get_rank())  # every rank cuts its share from another deck
        epochs.append(list(sampler))
    return {"epochs": epochs}
