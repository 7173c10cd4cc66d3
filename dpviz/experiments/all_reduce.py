"""What does a collective cost? Bytes and seconds by size, of gloo's own, of a ring by hand, and of a naive way.

    python -m dpviz run all_reduce --world-size 4 --link-gbps 1 --sizes 65536,8388608 --algorithm ring --json

Built in lesson 04.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpviz.experiments.equivalence import DTYPES
from dpviz.measure import clock, wire
from dpviz.measure.meter import Meter
from dpviz.parallel import ring
from dpviz.questions.all_reduce import Config, formula_bytes
from dpviz.records import COUNTED, Step

__all__ = ["Config", "experiment"]

PERIOD = 251  # of the numbers handed in: a prime, so that no chunk looks like the next one
NAMES = 32  # bits in which the ranks of a sum are named


def experiment(config):
    """Call one collective on payloads of each size, and time it alone. Yields a Step a size; see `Ledger`."""
    call, ledger = COLLECTIVES[config.algorithm][config.collective], Ledger(config)
    for number, size in enumerate(config.sizes):
        payload = ledger.payload(size)
        ledger.count(call, payload.clone())  # bytes, and whether the sum is right: not timed
        for _ in range(config.repeats):
            tensor = payload.clone()
            dist.barrier()  # the ranks begin together, or nearly so
            start = clock.now()
            call(tensor)
            ledger.time(start, clock.now())
        yield Step(step=number, values=ledger.latest())
    transfers = watched_ring(config, call) if config.algorithm == "ring" else {}
    return ledger.report() | transfers


def gloo_reduce_scatter(tensor):
    own = tensor.new_empty(tensor.numel() // dist.get_world_size())
    _reduce_scatter(own, tensor)
    return own


def gloo_all_gather(chunk):
    whole = chunk.new_empty(chunk.numel() * dist.get_world_size())
    _all_gather(whole, chunk)
    return whole


# torch's names before 2.13, which warn there
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

COLLECTIVES = {  # each either works in place or returns what this rank gets
    "gloo": {"all_reduce": dist.all_reduce, "reduce_scatter": gloo_reduce_scatter, "all_gather": gloo_all_gather},
    "ring": {"all_reduce": ring.all_reduce, "reduce_scatter": ring.reduce_scatter, "all_gather": ring.all_gather},
    "naive": {"all_reduce": ring.naive_all_reduce},
}


class Ledger:
    """Notes what the calls cost: it puts no collective into what is timed, nor between two readings of bytes.

    The report, one entry a size: spans ([start, end] of each repeat, by rank 0's clock), bytes_sent in one call, equal.
    sent_to: bytes sent to each rank in one call of the largest size, None where the kernel does not tell.
    """

    def __init__(self, config):
        self.config, self.rank, self.k = config, dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(config.seed)
        # whole numbers so small that the sum of 32 ranks is exact in bfloat16, too
        self.numbers = torch.randint(0, 8, (PERIOD,), generator=generator, device="cpu")
        self.numbers = self.numbers.to(device=torch.get_default_device(), dtype=DTYPES[config.dtype])
        self.offset, self.meter = clock.offset(), Meter()
        self.spans, self.bytes_sent, self.equal, self.sent_to = [], [], [], {}

    def payload(self, size):
        """Return what this rank hands in: for an all-gather its part of `size` bytes."""
        return self.of_rank(self.rank, self.config.elements(size, self.k))

    def of_rank(self, rank, elements):
        mine = self.numbers.roll(17 * rank)
        whole = mine.repeat(-(-elements // PERIOD))[:elements]
        return whole.tensor_split(self.k)[rank].clone() if self.config.collective == "all_gather" else whole

    def expected(self, elements):
        """Return what this rank must get."""
        if self.config.collective == "all_gather":
            return torch.cat([self.of_rank(rank, elements) for rank in range(self.k)])
        total = sum(self.numbers.roll(17 * rank) for rank in range(self.k))
        total = total.repeat(-(-elements // PERIOD))[:elements]
        return total if self.config.collective == "all_reduce" else total.tensor_split(self.k)[self.rank]

    def count(self, call, tensor):
        elements = tensor.numel() * (self.k if self.config.collective == "all_gather" else 1)
        call(tensor.clone())  # the first call of all opens connections
        self.meter.read()
        before = wire.sent_by_connection()
        result = call(tensor)
        sent, _ = self.meter.read()
        after = wire.sent_by_connection()
        if wire.how() == COUNTED and self.config.algorithm != "gloo":  # messages between ranks are not recorded
            payload = elements * tensor.itemsize
            back = self.config.algorithm == "naive" and self.rank != 0
            sent = payload if back else formula_bytes(self.config, payload, self.k)
        self.bytes_sent.append(sent)
        self.sent_to[elements] = {ends: sent - before.get(ends, 0) for ends, sent in after.items()}
        got = tensor if result is None else result
        self.equal.append(torch.equal(got, self.expected(elements)))
        self.spans.append([])

    def time(self, start, end):
        self.spans[-1].append([start + self.offset.seconds, end + self.offset.seconds])

    def latest(self):
        return {"payload_bytes": self.config.sizes[len(self.spans) - 1], "bytes_sent": self.bytes_sent[-1]}

    def report(self):
        return {
            "spans": self.spans,
            "bytes_sent": self.bytes_sent,
            "equal": self.equal,
            "sent_to": by_rank(self.sent_to[max(self.sent_to)]) if wire.how() != COUNTED else None,
            "clock": self.offset.how,
        }


def by_rank(sent):
    """Return the bytes of {(own end, other end): bytes} rank by rank: each says which ends of connections it has."""
    ends = [None] * dist.get_world_size()
    dist.all_gather_object(ends, list(sent))
    mine = [{(other, own) for own, other in of_rank} for of_rank in ends]
    return [sum(count for end, count in sent.items() if end in of_rank) for of_rank in mine]


def watched_ring(config, call):
    """Return one call's transfers, in order, with what was in them: whole numbers that name ranks and chunk travel,
    so that the sum itself tells how many ranks are in it. `ring_payload_bytes` is S of that call.

    A transfer: step, phase, to (a rank), chunk, bytes, contributions, start_s and end_s since the earliest rank began.
    """
    rank, k = dist.get_rank(), dist.get_world_size()
    payload = min((size for size in config.sizes if size >= 8 * k), default=8 * k)
    elements = payload // 8 // k * k
    chunks = torch.arange(k).repeat_interleave(elements // k)
    names = (chunks << NAMES) + (1 << rank)
    transfers = []

    def exchange(outgoing, incoming):
        start = clock.now()
        ring.exchange(outgoing, incoming)
        end = clock.now()
        contributions = (outgoing[0].item() & ((1 << NAMES) - 1)).bit_count()
        whole = contributions == k or config.collective == "all_gather"
        transfers.append(
            {
                "step": len(transfers),
                "phase": "all_gather" if whole else "reduce_scatter",
                "to": (rank + 1) % k,
                "chunk": (outgoing[0].item() >> NAMES) // contributions,
                "bytes": outgoing.nbytes,
                "contributions": contributions,
                "start_s": start,
                "end_s": end,
            }
        )

    offset = clock.offset().seconds
    call(names.tensor_split(k)[rank].clone() if config.collective == "all_gather" else names, exchange=exchange)
    starts = [0.0] * k
    dist.all_gather_object(starts, offset + transfers[0]["start_s"] if transfers else 0.0)
    for one in transfers:
        one["start_s"], one["end_s"] = (one[name] + offset - min(starts) for name in ("start_s", "end_s"))
    return {"transfers": transfers, "ring_payload_bytes": 8 * elements}
