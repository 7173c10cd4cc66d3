"""Bytes counted at the collectives, where the kernel does not tell: payload times the factor of the algorithm.

gloo's reduce-scatter is an all-reduce inside; nccl's is a true one, and its algorithms are taken to be rings.
A broadcast is taken to come from its group's first rank: torch's recorder does not tell. Messages from rank to rank are
not counted.
"""

from __future__ import annotations

from dpviz.records import Collective, Wire
from dpviz.theory import traffic

# From payload, rank and k to the bytes sent; what is scattered is looked up apart
_SENT = {
    "all_reduce": lambda payload, rank, k: traffic.ring_all_reduce_bytes(payload, k),
    "all_gather": lambda payload, rank, k: traffic.all_gather_bytes(payload * k, k),  # the payload is a rank's own part
    "_all_gather_base": lambda payload, rank, k: traffic.all_gather_bytes(payload * k, k),
    "broadcast": lambda payload, rank, k: traffic.broadcast_bytes(payload, k)[rank],
    "all_to_all": lambda payload, rank, k: payload * (k - 1) // k,
}
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base")


def wire(issued: list[Collective], rank: int, world_size: int, *, backend: str = "gloo") -> Wire:
    """Return the bytes that these collectives make `rank` send, each among the ranks of its group (all of them, where
    they are not known); what it receives is taken to be as much.
    """
    algorithm = "gloo" if backend == "gloo" else "ring"
    sent = 0
    for entry in issued:
        group = entry.ranks or range(world_size)
        if entry.name in _SCATTERS:
            sent += traffic.reduce_scatter_bytes(entry.payload, len(group), algorithm=algorithm)
        elif entry.name in _SENT:
            sent += _SENT[entry.name](entry.payload, group.index(rank), len(group))
    return Wire(sent=sent, received=sent)
