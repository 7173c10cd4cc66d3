"""Cheap fingerprints of a rank's state, so that ranks can be compared in the launcher without one collective more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

SAMPLED = 8  # values kept of each list of tensors, for a picture of how far ranks are apart


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a hash of every bit of the tensors, in order: equal on two ranks only if the tensors are bit for bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:16]


def sample(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Return a few values, spread evenly over the tensors laid end to end, as floats."""
    flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
    return flat[torch.linspace(0, len(flat) - 1, min(SAMPLED, len(flat))).long()].tolist()
