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


class Recorder:
    """Reads the flight recorder, remembering how far it has read."""

    def __init__(self) -> None:
        self.seen = -1

    def since_last(self) -> list[Collective]:
        """Return the collectives issued since the last call, in order, as far back as the ring buffer reaches."""
        entries = [(entry["record_id"], entry) for entry in _entries() if entry["record_id"] > self.seen]
        if entries:
            self.seen = entries[-1][0]
        return [_collective(entry) for _, entry in entries]


def renumbered(entries: list[Collective], before: int) -> list[Collective]:
    """Count those of the default group from 1 within a launch, when it had issued `before` of them earlier."""
    group = dist.distributed_c10d._get_default_group().group_name
    return [replace(entry, number=entry.number - before) if entry.group == group else entry for entry in entries]


def issued() -> int:
    """Return how many collectives the default group has issued on this rank, 0 where there is none."""
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group() if dist.is_initialized() else 0


def last() -> Collective | None:
    """Return the last collective that this rank issued in any group, None where there was none."""
    entries = _entries()
    return _collective(entries[-1]) if entries else None


def _entries() -> list[dict]:
    dump = torch._C._distributed_c10d._dump_fr_trace(
        includeCollectives=True, includeStackTraces=False, onlyActive=False
    )
    return [entry for entry in pickle.loads(dump).get("entries", []) if not entry["is_p2p"]]


def _collective(entry: dict) -> Collective:
    return Collective(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].removeprefix("gloo:"),
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"]),
        dtypes=tuple(entry["input_dtypes"]),
    )
