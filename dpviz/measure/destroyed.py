"""A process group that an experiment destroys keeps its connections until its bytes have been read.

The kernel's counters go with the connection, and a rank that closes its end takes the other's along. So for the length
of a launch `torch.distributed.destroy_process_group` does what it does, and the group is held here as well: its
connections close with the last reference. It wraps no collective.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator

import torch.distributed as dist
from torch.distributed import distributed_c10d

from dpviz.measure import collectives, wire

MOST = 16  # groups; each has a connection to each of its ranks, and a process may open only so many
_groups: deque[dist.ProcessGroup] = deque(maxlen=MOST)
_counters: wire.Counters | None = None  # of the launch that runs
_original = distributed_c10d.destroy_process_group


@functools.wraps(_original)
def _destroy(group=None):
    if group is not None and _counters is not None:
        collectives.remember_groups()
        _counters.look()  # now: once it is the oldest of too many, whichever rank comes first closes it for the others
        _groups.append(group)
    return _original(group)


def keep(counters: wire.Counters) -> None:
    """Keep, from now on, the connections of every group that is destroyed; `counters` are what reads their bytes."""
    global _counters
    _counters = counters
    dist.destroy_process_group = distributed_c10d.destroy_process_group = _destroy


def let_go() -> None:
    """Close what was kept, once all ranks have read their bytes, and keep no more."""
    global _counters
    _counters = None
    _groups.clear()
    for module in (dist, distributed_c10d):
        if module.destroy_process_group is _destroy:  # and not what the experiment put there
            module.destroy_process_group = _original


@contextlib.contextmanager
def kept(counters: wire.Counters) -> Iterator[None]:
    """Keep what is destroyed within this block, at whose end all ranks must have read their bytes."""
    keep(counters)
    try:
        yield
    finally:
        let_go()
