"""Cheap fingerprints of a rank's state, so that ranks can be compared in the launcher without one collective more."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import random
from collections.abc import Iterable

import torch

SAMPLED = 8  # values kept of each list of tensors, for a picture of how far ranks are apart
PROBED = 64  # values that a probe looks at


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a hash of every bit of the tensors, in order: equal on two ranks only if the tensors are bit for bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy())
    return sha.hexdigest()[:16]


def sample(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Return a few values, spread evenly over the tensors laid end to end, as floats."""
    flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
    return flat[torch.linspace(0, len(flat) - 1, min(SAMPLED, len(flat))).long()].tolist()


def probe(tensors: Iterable[torch.Tensor], *, seed: int, values: int = PROBED) -> str:
    """Return a hash of `values` values at places drawn from `seed`: the same places on every rank that says the same
    seed, others in the next step. A difference that lies in one value of N is seen with probability values / N.
    """
    flat = [tensor.detach().flatten() for tensor in tensors]
    ends = [0, *itertools.accumulate(map(len, flat))][1:]
    n = ends[-1] if ends else 0
    places = sorted(random.Random(str(seed)).sample(range(n), min(values, n)))
    owners = [bisect.bisect(ends, place) for place in places]
    return digest([flat[i][place - ends[i]] for i, place in zip(owners, places, strict=True)])


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return the sum of all values' bits taken as integers, which may wrap round: it reads each value once, sees any
    single difference, and misses those that cancel.
    """
    total = 0
    for tensor in tensors:
        flat = tensor.detach().contiguous().flatten()
        integers = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        wide = torch.int64 if flat.element_size() == 8 else torch.int32
        total += integers.sum(dtype=wide).item()
    return total
