"""What does a collective cost? Bytes and seconds by size, of gloo's own, of a ring by hand, and of a naive way.

S is the payload: what one rank hands in, for an all-gather what it holds afterwards. A size that is no whole number of
elements is rounded up, in a reduce-scatter or all-gather to as many elements for each rank.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, numbers, whole
from dpviz.questions.equivalence import BYTES
from dpviz.records import COUNTED
from dpviz.theory import time, traffic

KiB, MiB = 1 << 10, 1 << 20
LARGEST_IN_ALL = 1 << 30  # bytes of one payload on all ranks together; a rank holds some four times its own


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    sizes: tuple[int, ...] = numbers(
        (4 * KiB, 64 * KiB, MiB, 8 * MiB), low=1, high=256 * MiB, integers=True, help="bytes of the payloads, S"
    )
    algorithm: str = choice(
        "gloo",
        ("gloo", "ring", "naive"),
        help="gloo's own, a ring of messages between neighbours, or everything to rank 0 and back",
    )
    collective: str = choice(
        "all_reduce", ("all_reduce", "reduce_scatter", "all_gather"), help="the whole, or either half of a ring"
    )
    repeats: int = whole(5, low=1, high=1000, help="calls that are timed, for each size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm == "naive" and self.collective != "all_reduce":
            raise WrongValue(
                f"there is no naive {self.collective}. Leave out collective, or let algorithm be gloo or ring."
            )

    def check_world_size(self, world_size: int) -> None:
        super().check_world_size(world_size)
        if max(self.sizes) * world_size > LARGEST_IN_ALL:
            raise WrongValue(
                f"{world_size} ranks of {max(self.sizes)} bytes each need too much memory. "
                f"Let the largest of sizes be {LARGEST_IN_ALL // world_size} at most, or take fewer ranks."
            )

    def elements(self, size: int, k: int) -> int:
        """Return how many elements a payload of `size` bytes has."""
        count = -(-size // BYTES[self.dtype])
        return count if self.collective == "all_reduce" else -(-count // k) * k

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return one entry a size, in the order given:

        payload_bytes                S
        bytes_over_payload           bytes sent in one call over S, of the rank that sends most;
                                     bytes_over_payload_by_rank has them all
        formula_bytes_over_payload   what a ring must send, 2 (k-1)/k or (k-1)/k; k-1 in the naive way
        bytes_over_payload_predicted the same of what is really called, headers left out: gloo's reduce-scatter is an
                                     all-reduce inside, and chunks may differ by an element. framing_bytes_predicted:
                                     the headers of that rank
        seconds                      {median, min, max} over repeats, each from the latest start to the latest end
        formula_seconds              the formula's bytes at the link's rate; None without a link
        equal                        every rank got the exact sum
        algorithm_bandwidth_bytes_per_s, bus_bandwidth_bytes_per_s   of the median

        and over all sizes, seconds = call_s + bytes sent / bandwidth_bytes_per_s, the line through the medians whose
        relative errors are least; latency_s is call_s over the steps of a ring, 2 (k-1) or k-1. The ranges reach over
        the lines through each repeat alone. None for fewer than two sizes, or one rank.
        """
        config, k = Config(**run.config), run.environment.world_size
        payloads = [config.elements(size, k) * BYTES[config.dtype] for size in config.sizes]
        sent = [[result["bytes_sent"][i] for result in run.results] for i in range(len(payloads))]
        expected = [predicted(config, size, k) for size in payloads]
        repeats = [_repeats([result["spans"][i] for result in run.results]) for i in range(len(payloads))]
        seconds = [{"median": statistics.median(t), "min": min(t), "max": max(t)} for t in repeats]
        factor = formula_bytes(config, MiB * k, k) / (MiB * k)
        gbps = run.environment.link_gbps
        rate = gbps and gbps * 1e9 / 8  # bytes a second
        ways = 2 if config.algorithm == "naive" else 1  # there rank 0 receives everything before it sends any
        medians = [one["median"] for one in seconds]
        ring = {"collective": config.collective}
        return {
            "payload_bytes": payloads,
            "bytes_over_payload": [max(of_ranks) / s for of_ranks, s in zip(sent, payloads, strict=True)],
            "bytes_over_payload_by_rank": [[b / s for b in ranks] for ranks, s in zip(sent, payloads, strict=True)],
            "formula_bytes_over_payload": [factor] * len(payloads),
            "bytes_over_payload_predicted": [one.payload / s for one, s in zip(expected, payloads, strict=True)],
            "framing_bytes_predicted": [0 if run.environment.wire == COUNTED else one.framing for one in expected],
            "seconds": seconds,
            "formula_seconds": [ways * factor * s / rate if rate else None for s in payloads],
            "equal": [all(result["equal"][i] for result in run.results) for i in range(len(payloads))],
            "algorithm_bandwidth_bytes_per_s": [
                time.algorithm_bandwidth(s, t) for s, t in zip(payloads, medians, strict=True)
            ],
            "bus_bandwidth_bytes_per_s": [
                time.bus_bandwidth(s, k, t, **ring) for s, t in zip(payloads, medians, strict=True)
            ],
            **_fitted([max(of_ranks) for of_ranks in sent], medians, repeats, time.ring_steps(k, **ring)),
        }


def formula_bytes(config: Config, payload: int, k: int) -> int:
    """Bytes that the busiest rank must send by the textbook."""
    if config.algorithm == "naive":
        return (k - 1) * payload
    all_reduce = config.collective == "all_reduce"
    return traffic.ring_all_reduce_bytes(payload, k) if all_reduce else traffic.all_gather_bytes(payload, k)


def predicted(config: Config, payload: int, k: int) -> traffic.Sent:
    """What the busiest rank really sends: of gloo what is known of it, of our own code what it says."""
    item, message = BYTES[config.dtype], 3 * traffic.HEADER
    if config.algorithm == "naive":
        return traffic.Sent((k - 1) * payload, (k - 1) * message)
    if config.algorithm == "gloo" and config.collective != "all_gather":  # its reduce-scatter is an all-reduce inside
        return max(traffic.gloo_all_reduce(payload // item, k, element_size=item), key=sum)
    if config.collective != "all_reduce":
        messages = 2 if config.algorithm == "gloo" else 1  # gloo cuts what a rank owns in two
        return traffic.Sent(traffic.all_gather_bytes(payload, k), (k - 1) * messages * message)
    n = payload // item
    chunks = [(n // k + (i < n % k)) * item for i in range(k)]  # as tensor_split cuts
    # all chunks but the own one are sent in the first half, all but the next rank's in the second
    kept = min(chunks[i] + chunks[(i + 1) % k] for i in range(k))
    return traffic.Sent(2 * payload - kept, 2 * (k - 1) * message)


def _repeats(spans: list[list[list[float]]]) -> list[float]:
    """[rank][repeat][start, end] -> the seconds of each repeat: before the latest start nothing can have been done."""
    together = zip(*spans, strict=True)
    return [max(end for _, end in ranks) - max(start for start, _ in ranks) for ranks in together]


def _fitted(sent: list[int], medians: list[float], repeats: list[list[float]], steps: int) -> dict[str, Any]:
    if len(set(sent)) < 2:
        names = ("call_s", "latency_s", "latency_range_s", "bandwidth_bytes_per_s", "bandwidth_range_bytes_per_s")
        return dict.fromkeys(names)
    line = time.fit(sent, medians)
    lines = [line, *(time.fit(sent, times) for times in zip(*repeats, strict=True))]
    latencies, bandwidths = [one.call_s / steps for one in lines], [one.bytes_per_s for one in lines]
    return {
        "call_s": line.call_s,
        "latency_s": line.call_s / steps,
        "latency_range_s": [min(latencies), max(latencies)],
        "bandwidth_bytes_per_s": line.bytes_per_s,
        "bandwidth_range_bytes_per_s": [min(bandwidths), max(bandwidths)],
    }
