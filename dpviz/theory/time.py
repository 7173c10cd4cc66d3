"""How long a collective takes, and what part of a step it is: the alpha-beta model and what follows from it.

Terms: k is the number of ranks, S the payload in bytes, "on the wire" the bytes that one rank sends for it (see
`traffic`). A collective takes a fixed time for each of its steps (alpha, the latency), and its bytes on the wire go at
a fixed rate (beta, the bandwidth; elsewhere beta is one over it). Seconds, bytes a second; 1 Gb/s is 1.25e8 bytes a
second.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dpviz.theory import traffic


def ring_all_reduce_seconds(payload, k, *, bytes_per_s, latency_s=0.0):
    """Seconds of a ring all-reduce: 2 (k-1) steps of `latency_s` each, and its bytes at `bytes_per_s`.

    Source: the alpha-beta model, as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH" (2005). 7e9 parameters in bfloat16 on 8 ranks: 24.5 GB a rank, 0.49 s at 50 GB/s.
    """
    if not bytes_per_s > 0:
        raise ValueError(f"bytes_per_s is {bytes_per_s}, but must be more than 0: 1 Gb/s is 1.25e8 bytes a second")
    if not latency_s >= 0:
        raise ValueError(f"latency_s is {latency_s}, but must be 0 or more seconds")
    return ring_steps(k) * latency_s + traffic.ring_all_reduce_bytes(payload, k) / bytes_per_s


def ring_steps(k, *, collective="all_reduce"):
    """Steps of a ring of k ranks, each of which waits for a message: 2 (k-1) in an all-reduce, k-1 in either half."""
    return (2 if collective == "all_reduce" else 1) * (k - 1)


class Line(NamedTuple):
    """Seconds of a collective = call_s + bytes on the wire / bytes_per_s. `bytes_per_s` is infinite where more bytes
    take no longer.
    """

    call_s: float
    bytes_per_s: float

    def seconds(self, on_the_wire):
        return self.call_s + on_the_wire / self.bytes_per_s


def fit(on_the_wire: Sequence[float], seconds: Sequence[float]) -> Line:
    """Return the line through measured times whose relative errors are least: the sum of squares of the logarithms of
    line over time. Raises ValueError for fewer than two different sizes.

    Relative, since times differ a thousandfold: by absolute errors the largest message alone would decide, and of the
    fixed part nothing would be known. Logarithms, since twice too much is as wrong as half.
    """
    points = [(float(x), float(t)) for x, t in zip(on_the_wire, seconds, strict=True)]
    if len({x for x, _ in points}) < 2 or not all(x > 0 and t > 0 for x, t in points):
        raise ValueError("a line needs two different sizes above 0 at least, each with a time above 0")

    # The fixed part in terms of the bytes that take as long: then the rate that suits it best is known, and only this
    # one number is looked for, ever more closely. `rest` is what remains of each point, in logarithms.
    def rest(fixed):
        return [math.log(t / (fixed + x)) for x, t in points]

    none, all_of_it = min(x for x, _ in points) / 1e4, max(x for x, _ in points) * 1e4
    low, high = none, all_of_it
    for _ in range(8):
        grid = [low * (high / low) ** (i / 50) for i in range(51)]
        i = min(range(51), key=lambda i: statistics.pvariance(rest(grid[i])))
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, 50)]
    best = math.sqrt(low * high)
    s_per_byte = math.exp(statistics.fmean(rest(best)))
    if best > all_of_it / 2:
        return Line(best * s_per_byte, math.inf)
    return Line(best * s_per_byte if best > 2 * none else 0.0, 1 / s_per_byte)


def algorithm_bandwidth(payload, seconds):
    """S / t: bytes of the payload that are done a second. It falls with k, since 2 (k-1)/k bytes travel for each."""
    return payload / seconds


def bus_bandwidth(payload, k, seconds, *, collective="all_reduce"):
    """Bytes a second that leave a rank, as if the collective were a ring: to be held against a link, whatever k is.

    Source: NVIDIA's nccl-tests, PERFORMANCE.md: S / t times 2 (k-1)/k for an all-reduce, (k-1)/k for either half.
    """
    return algorithm_bandwidth(payload, seconds) * ring_steps(k, collective=collective) / k


class Step(NamedTuple):
    """Seconds of one training step on one rank, nothing overlapped."""

    compute_s: float
    communication_s: float

    @property
    def seconds(self):
        return self.compute_s + self.communication_s

    @property
    def share(self):
        """The part of the step in which a rank only communicates."""
        return self.communication_s / self.seconds if self.seconds else 0.0


def compute_seconds(parameters, tokens, *, flops_per_s):
    """6 N operations a token, forward and backward, at `flops_per_s`. It grows with N as the bytes of a gradient do.

    Source: Kaplan et al., "Scaling laws for neural language models" (2020), section 2.1. 7e9 parameters, 1024
    sequences of 1024 tokens, 1e14 a second: 440 s.
    """
    return 6 * parameters * tokens / flops_per_s


def step(tokens, k, *, s_per_token, payload, bytes_per_s, latency_s=0.0) -> Step:
    """Return the seconds of a step in which each of k ranks computes on `tokens` and then all-reduces a gradient of
    `payload` bytes, which does not depend on `tokens`.
    """
    communication = ring_all_reduce_seconds(payload, k, bytes_per_s=bytes_per_s, latency_s=latency_s)
    return Step(s_per_token * tokens, communication)


def strong_scaling(ks, *, tokens, **machine) -> list[Step]:
    """Return a step for each number of ranks, who *share* `tokens`: the computing of each falls, the communication
    does not, and takes an ever larger part. `machine` as for `step`.
    """
    return [step(tokens / k, k, **machine) for k in ks]


def weak_scaling(ks, *, tokens, **machine) -> list[Step]:
    """Return a step for each number of ranks, of whom *each* has `tokens`: the batch grows with k, and the part of
    the communication only as (k-1)/k does. `machine` as for `step`.
    """
    return [step(tokens, k, **machine) for k in ks]
