"""What this rank sent in each of several process groups: a gloo group has connections of its own.

Which connections are whose, the groups are asked themselves: a call in which everyone talks to everyone makes just
their counters move. That is done once, before anything is measured.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpviz.measure import counted, wire
from dpviz.measure.collectives import Recorder
from dpviz.records import COUNTED, Collective


class GroupMeter:
    """Reads the bytes that this rank sent since the last reading, group by group.

    Making one is a collective of all of the groups, called in the same order on every rank: an all_to_all each, which a
    run's calls and bytes include, since it tells whose connections are whose. Where the kernel does not
    count, bytes are those of the collectives by their group; messages from rank to rank are then the caller's to add.
    """

    def __init__(self, groups: dict[str, dist.ProcessGroup]) -> None:
        self.groups, self.recorder = groups, Recorder()
        self.owner = {ends: name for name, group in groups.items() for ends in _connections(group)}
        self.seen: dict[tuple[str, str], int] = {}
        self.read()

    def read(self) -> tuple[dict[str, int], dict[str, list[Collective]]]:
        """Return ({name: bytes sent}, {name: collectives issued}) since the last reading."""
        names = {group.group_name: name for name, group in self.groups.items()}
        issued: dict[str, list[Collective]] = {name: [] for name in self.groups}
        for entry in self.recorder.since_last():
            if entry.group in names:
                issued[names[entry.group]].append(entry)
        if wire.how() == COUNTED:
            rank, size = dist.get_rank(), dist.get_world_size()
            return {name: counted.wire(entries, rank, size).sent for name, entries in issued.items()}, issued
        now, sent = wire.sent_by_connection(), dict.fromkeys(self.groups, 0)
        for ends, total in now.items():
            if ends in self.owner:
                sent[self.owner[ends]] += total - self.seen.get(ends, 0)
        self.seen = now
        return sent, issued


def _connections(group: dist.ProcessGroup) -> set[tuple[str, str]]:
    k = dist.get_world_size(group)
    if k == 1 or wire.how() == COUNTED:
        return set()
    before = wire.sent_by_connection()
    numbers = torch.zeros(k)
    dist.all_to_all_single(torch.empty_like(numbers), numbers, group=group)
    moved = {ends for ends, sent in wire.sent_by_connection().items() if sent != before.get(ends, 0)}
    assert len(moved) == k - 1, f"{len(moved)} connections moved in a group of {k} ranks"
    return moved
