"""Random numbers on the ranks: equal where parameters are made, different where data and dropout need them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy
import torch


def reset(seed: int = 0) -> None:
    """Seed torch, numpy and random alike on every rank, as each launch does: equal code then makes equal parameters."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def seed_by_rank(seed: int = 0) -> None:
    """Seed torch, numpy and random differently on each rank: call it after the model is built, before dropout or
    augmentation.
    """
    reset(seed * 1_000_003 + 1 + torch.distributed.get_rank())


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put the random state of this process back at the end."""
    states = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        numpy.random.set_state(states[1])
        random.setstate(states[2])
