"""Which collectives this rank has issued, from torch's flight recorder: torch's own record, so nothing has to be
wrapped.

The recorder is a ring buffer of TORCH_FR_BUFFER_SIZE entries (see wire.recorder_entries); reading it costs about 10
microseconds an entry.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import torch
import torch.distributed as dist

from dpviz.records import Collective

_ranks_of: dict[str, tuple[int, ...]] = {}  # by the group's name, also of groups that were destroyed since


class Recorder:
    """Reads the flight recorder, remembering how far it has read."""

    def __init__(self) -> None:
        self.seen = -1
        self.number = 0  # of the default group's last collective in an earlier launch

    def since_last(self) -> list[Collective]:
        """Return the collectives issued since the last call, in order, as far back as the ring buffer reaches."""
        entries = [(entry["record_id"], entry) for entry in _entries() if entry["record_id"] > self.seen]
        if entries:
            self.seen = entries[-1][0]
        return [_collective(entry) for _, entry in entries]

    def begin_group(self) -> None:
        """There is a new default group, whose collectives are numbered from 1."""
        self.number = 0

    def reached(self) -> tuple[int, Collective | None]:
        """Return how many collectives the default group has issued in this launch, by the number of the last one
        (messages between two ranks are not counted), and the launch's last collective in any group.
        """
        if not dist.is_initialized():
            return 0, None
        group = dist.distributed_c10d._get_default_group().group_name
        entries = [_collective(entry) for entry in _entries() if entry["record_id"] > self.seen]
        numbers = [entry.number for entry in entries if entry.group == group]
        return numbers[-1] - self.number if numbers else 0, entries[-1] if entries else None

    def of_launch(self) -> list[Collective]:
        """Return the same, those of the default group counted from 1 within the launch that ends here.

        By the recorder's own numbers: the group's also count messages from rank to rank, of which a rank may send more
        than another.
        """
        entries, group = self.since_last(), dist.distributed_c10d._get_default_group().group_name
        numbers = [entry.number for entry in entries if entry.group == group]
        before, self.number = self.number, numbers[-1] if numbers else self.number
        return [replace(e, number=e.number - before) if e.group == group else e for e in entries]


def issued() -> int:
    """Return how many collectives the default group has issued on this rank, 0 where there is none. Messages from rank
    to rank are counted, too.
    """
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group() if dist.is_initialized() else 0


def remember_groups() -> None:
    """Note which ranks each group has; the recorder keeps its name alone, and torch forgets what is destroyed."""
    for group, name in dist.distributed_c10d._world.pg_names.items():
        _ranks_of[name] = tuple(dist.get_process_group_ranks(group))


def _entries() -> list[dict]:
    remember_groups()
    on_nccl = dist.is_initialized() and dist.get_backend() == "nccl"  # which has a recorder of its own
    recorder = torch._C._distributed_c10d
    dumped = recorder._dump_nccl_trace if on_nccl else recorder._dump_fr_trace
    dump = dumped(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    return [entry for entry in pickle.loads(dump).get("entries", []) if not entry["is_p2p"]]


def _collective(entry: dict) -> Collective:
    group = entry["process_group"][0]
    return Collective(
        group=group,
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].rpartition(":")[2],
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"]),
        dtypes=tuple(entry["input_dtypes"]),
        ranks=_ranks_of.get(group, ()),
    )
