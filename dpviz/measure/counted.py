"""Bytes counted at the collectives, where the kernel does not tell: payload times the factor of gloo's algorithm.

They are taken to be among all ranks, and a broadcast to come from rank 0: torch's recorder does not tell. Messages from
rank to rank are not counted.
"""

from __future__ import annotations

from dpviz.records import Collective, Wire
from dpviz.theory import traffic

# What gloo does for each (its reduce-scatter is an all-reduce inside): from payload, rank and k to the bytes sent
_SENT = {
    "all_reduce": lambda payload, rank, k: traffic.ring_all_reduce_bytes(payload, k),
    "reduce_scatter": lambda payload, rank, k: traffic.reduce_scatter_bytes(payload, k, algorithm="gloo"),
    "_reduce_scatter_base": lambda payload, rank, k: traffic.reduce_scatter_bytes(payload, k, algorithm="gloo"),
    "all_gather": lambda payload, rank, k: traffic.all_gather_bytes(payload * k, k),  # the payload is a rank's own part
    "_all_gather_base": lambda payload, rank, k: traffic.all_gather_bytes(payload * k, k),
    "broadcast": lambda payload, rank, k: traffic.broadcast_bytes(payload, k)[rank],
    "all_to_all": lambda payload, rank, k: payload * (k - 1) // k,
}


def wire(issued: list[Collective], rank: int, world_size: int) -> Wire:
    """Return the bytes that these collectives make `rank` send; what it receives is taken to be as much."""
    sent = sum(_SENT[entry.name](entry.payload, rank, world_size) for entry in issued if entry.name in _SENT)
    return Wire(sent=sent, received=sent)
