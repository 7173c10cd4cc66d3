"""Ranks that should be replicas, compared by what each put on record of one step. No rank is asked anything."""

from __future__ import annotations

import collections
import math
from collections.abc import Hashable
from typing import Any

# Every rank of a group must call these in the same order with the same shapes; gather, scatter and the like may differ
SAME_EVERYWHERE = {
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "barrier",
}


def minority(values: dict[int, Hashable]) -> list[int]:
    """Return the ranks whose value is not the most common one; all of them where no value leads."""
    counted = collections.Counter(values.values()).most_common(2)
    if len(counted) < 2:
        return []
    tied = counted[0][1] == counted[1][1]
    return sorted(rank for rank, value in values.items() if tied or value != counted[0][0])


def unequal(values: list[Hashable]) -> list[int]:
    """Return the ranks that differ from the majority; `values` are those of rank 0, 1, ..."""
    return minority(dict(enumerate(values)))


def off_schedule(rates: list[float], *, updates: int, schedule: dict[str, Any]) -> list[int]:
    """Return the ranks whose learning rate is not that of a cosine {"lr": at its start, "steps": in all} after so many
    updates.
    """
    expected = schedule["lr"] * cosine(updates, schedule["steps"])
    tolerance = 1e-9 * schedule["lr"] + 1e-15
    return [rank for rank, lr in enumerate(rates) if not math.isclose(lr, expected, abs_tol=tolerance)]


def not_finite(values: list[float]) -> list[int]:
    """Return the ranks whose value is infinite or no number."""
    return [rank for rank, value in enumerate(values) if not math.isfinite(value)]


def shared(values: list[Hashable]) -> list[int]:
    """Return the ranks that have the value of another rank, where each should have its own."""
    counts = collections.Counter(values)
    return [rank for rank, value in enumerate(values) if counts[value] > 1]


def cosine(updates: int, total: int) -> float:
    """The schedule in closed form: 1 at the start, 0 after `total` updates. Source: Loshchilov and Hutter, SGDR
    (2017).
    """
    return (1 + math.cos(math.pi * updates / total)) / 2
