"""What a part of an experiment has sent: for experiments that measure one update and not the whole launch."""

from __future__ import annotations

import torch.distributed as dist

from dpviz.measure import counted, wire
from dpviz.measure.collectives import Recorder
from dpviz.records import COUNTED, Collective


class Meter:
    """Reads this rank's bytes and collectives since the last reading.

    A collective that has returned on this rank has sent all that this rank had to send, so no barrier is needed.
    """

    def __init__(self) -> None:
        self.counters, self.recorder = wire.Counters(), Recorder()
        self.read()

    def read(self) -> tuple[int, list[Collective]]:
        """Return (bytes sent, collectives issued) since the last reading."""
        issued, (sent, _) = self.recorder.since_last(), self.counters.since_last()
        if wire.how() == COUNTED:
            ranks = dist.get_rank(), dist.get_world_size()
            sent = counted.wire(issued, *ranks, backend=dist.get_backend()).sent
        return sent, issued
