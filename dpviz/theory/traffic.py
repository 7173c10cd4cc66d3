"""How many bytes a collective moves. How long that takes stands in `time`.

Terms: k is the number of ranks, S the payload in bytes (what one rank hands to the collective, or for an all-gather
what it holds afterwards). "Bytes" always means what one rank *sends*; over all ranks as much is received. Three layers:

    ring_*                what the algorithm must move, the same for every rank: (k-1)/k * S, once or twice
    broadcast_bytes       gloo's binomial tree, where ranks differ
    gloo_all_reduce       what gloo really puts on the wire, rank by rank: whole elements, and its own headers
"""

import math
from typing import NamedTuple

HEADER = 48  # bytes of gloo's TCP header; a message takes three: ready to send, ready to receive, and before the data
MAX_SEGMENT = 1 << 20  # bytes; gloo cuts what a rank owns into segments no larger than this


class Sent(NamedTuple):
    """Bytes one rank sends: the gradients' own, and gloo's headers beside them."""

    payload: int
    framing: int


def ring_all_reduce_bytes(payload, k):
    """2 (k-1)/k * S bytes a rank: a reduce-scatter and an all-gather, each (k-1)/k * S. Rounded to whole bytes.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), who also
    show that no algorithm can send less. Per payload it is 1.0, 1.33, 1.5, 1.75 for k = 2, 3, 4, 8: "about two" only
    for large k.
    """
    return _rounded(2 * (_ranks(k) - 1) * _payload(payload), k)


def reduce_scatter_bytes(payload, k, *, algorithm="ring"):
    """(k-1)/k * S bytes a rank in a ring.

    On gloo 2 (k-1)/k * S: its reduce_scatter is an all-reduce inside (measured).
    """
    if algorithm not in ("ring", "gloo"):
        raise ValueError(f"algorithm is {algorithm!r}, but must be ring or gloo")
    return _rounded((2 if algorithm == "gloo" else 1) * (_ranks(k) - 1) * _payload(payload), k)


def all_gather_bytes(payload, k):
    """(k-1)/k * S bytes a rank, S being the whole that every rank holds afterwards.

    gloo's all_gather is this ring (measured).
    """
    return _rounded((_ranks(k) - 1) * _payload(payload), k)


def zero_bytes(payload, k, *, stage, accumulation_steps=1, reduce="each", gradients="reduce_scatter"):
    """Bytes a rank sends in one optimizer step of a ZeRO stage, P = `payload` being the bytes of the gradients and as
    many of the parameters. In units of (k-1)/k * P, with K accumulation steps:

        stage 0    2        one all-reduce
        stage 1    2        a reduce-scatter, and the new parameters gathered; 3 with gradients="all_reduce", as
                            torch's DDP with ZeroRedundancyOptimizer does
        stage 2    K + 1    gradients stay divided only if each micro-batch's are reduced; 2 with reduce="last"
        stage 3    3 K      parameters are gathered for forward and for backward; 2 K + 1 with reduce="last"

    Source: Rajbhandari et al. (2020), section 7, for K = 1. 7e9 parameters in bfloat16 on 8 ranks: 24.5 GB for stages
    0 to 2 and 36.75 GB for stage 3. Raises ValueError for an unknown stage or setting.
    """
    K = accumulation_steps
    for name, value, known in (
        ("stage", stage, (0, 1, 2, 3)),
        ("reduce", reduce, ("each", "last")),
        ("gradients", gradients, ("reduce_scatter", "all_reduce")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(str, known))}")
    reductions = K if reduce == "each" and stage >= 2 else 1
    if stage <= 1:
        times = 3 if stage == 1 and gradients == "all_reduce" else 2
    else:
        times = reductions + (1 if stage == 2 else 2 * K)
    return _rounded(times * (_ranks(k) - 1) * _payload(payload), k)


def broadcast_bytes(payload, k, *, root=0):
    """Bytes each rank sends to broadcast `payload` bytes from `root`: a list with one entry a rank.

    Source: gloo/broadcast.cc, a binomial tree, counted from the root: in round i each of the first 2^i ranks sends all
    of it to the rank 2^i further on. k - 1 copies in all, ceil(log2 k) of them sent by the root.
    """
    payload, k = _payload(payload), _ranks(k)
    if not 0 <= root < k:
        raise ValueError(f"root is {root}, but must be a rank from 0 to {k - 1}")
    distances = [(rank - root) % k for rank in range(k)]
    rounds = range((k - 1).bit_length())
    return [payload * sum(d < 1 << i and d + (1 << i) < k for i in rounds) for d in distances]


def broadcast_framing_bytes(k, *, root=0):
    """Bytes of gloo's headers that each rank sends in one broadcast, whatever its size: a list with one entry a rank.

    A rank that receives says it is ready (one header); for each copy it passes on it sends two (measured at k = 2 to
    8).
    """
    copies = broadcast_bytes(1, k, root=root)
    return [HEADER * (2 * count + (rank != root)) for rank, count in enumerate(copies)]


def framing_bytes(k, calls=1):
    """576 (k-1) bytes a rank for each gloo all-reduce: its headers, for payloads from about 500 bytes to 2k MiB.

    Measured at k = 2 to 8. A ring of k ranks passes 4 (k-1) messages a rank, since gloo cuts what a rank owns in two,
    and a message takes three headers of 48 bytes. `gloo_all_reduce` gives what holds outside that range.
    """
    if calls < 0:
        raise ValueError(f"calls is {calls}, but must be 0 or more")
    return 12 * HEADER * (_ranks(k) - 1) * calls


def gloo_all_reduce(elements, k, *, element_size):
    """What each rank really sends in one gloo all-reduce of `elements` numbers: a list with one `Sent` a rank.

    Source: gloo/allreduce.cc, the ring. The payload is cut into equal segments of whole elements, at least two a rank;
    where that leaves a remainder the last ones are shorter or empty, so ranks differ by a few bytes. A rank sends all
    segments but its own in the reduce-scatter, and all but its neighbour's in the all-gather. Equal to the kernel's
    count of bytes.
    """
    total, k = _payload(elements) * _payload(element_size), _ranks(k)
    if k == 1 or total == 0:
        return [Sent(0, 0)] * k
    largest = max(1, MAX_SEGMENT // element_size) * element_size
    segments = _round_up(max(-(-total // largest), 2 * k), k)
    size = _round_up(-(-total // segments), element_size)
    lengths = [min(size, max(0, total - i * size)) for i in range(segments)]
    owned = [lengths[rank * segments // k : (rank + 1) * segments // k] for rank in range(k)]
    sent = [[*lengths, *lengths] for _ in range(k)]
    for rank, mine in enumerate(sent):
        for length in (*owned[rank], *owned[rank - 1]):
            mine.remove(length)
    messages = [sum(length > 0 for length in mine) for mine in sent]
    return [
        Sent(sum(mine), HEADER * (2 * messages[rank] + messages[(rank + 1) % k]))  # data comes from the next rank
        for rank, mine in enumerate(sent)
    ]


def _ranks(k):
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}, but must be a whole number of ranks, 1 or more")
    return k


def _payload(count):
    if not 0 <= count < math.inf or count != int(count):
        raise ValueError(f"a payload of {count!r} was given, but it must be a whole number, 0 or more")
    return int(count)


def _rounded(numerator, k):
    return (2 * numerator + k) // (2 * k)  # in whole numbers: a float loses bytes beyond 2^53


def _round_up(number, multiple):
    return -(-number // multiple) * multiple
