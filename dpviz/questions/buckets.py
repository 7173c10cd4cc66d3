"""How large should a bucket be? DDP's gradients travel in buckets while backward still computes.

A rank's model is `layers` matrices of width x width, each used twice, and beside them `small_tensors` of 4 KiB, spread
over the layers.
The loss is the mean of the squared output on `batch` samples of the rank's own, so that the true gradient is one
process's on all of them.

    torch         DistributedDataParallel
    per_tensor    by hand: one all-reduce a tensor, after backward
    flat          by hand: one all-reduce in all, after backward
    bucketed      by hand: one all-reduce a bucket, during backward
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, flag, number, whole
from dpviz.questions.equivalence import BYTES, TOLERANCE
from dpviz.records import COUNTED
from dpviz.theory import traffic

MIB = 1 << 20
SMALL_BYTES = 4096
LARGEST = 128 * MIB  # of gradients: a rank holds three models, and the reference is in float64
DDP_ONLY = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "no_sync", "default_cap")
LATE, LATE_S = 0.25, 0.01  # of computing alone, and at least so many seconds: less is the scheduler's noise


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    bucket_cap_mb: float = number(25.0, low=0.001, high=1024.0, help="size in MiB at which a bucket is full")
    layers: int = whole(16, low=1, high=64, help="layers of the model")
    width: int = whole(512, low=8, high=2048, help="a layer is width x width")
    batch: int = whole(256, low=1, high=4096, help="samples of each rank")
    small_tensors: int = whole(0, low=0, high=2048, help="tensors of 4 KiB beside the layers")
    implementation: str = choice(
        "torch", ("torch", "per_tensor", "flat", "bucketed"), help="torch's DDP, or one of three steps by hand"
    )
    default_cap: bool = flag(False, help="leave bucket_cap_mb out: torch takes 25, and 1 for the first bucket")
    find_unused_parameters: bool = flag(False, help="DDP looks for parameters that the forward did not use")
    gradient_as_bucket_view: bool = flag(False, help="gradients live in the buckets' own memory")
    static_graph: bool = flag(False, help="tell DDP that every iteration uses the same parameters")
    no_sync: bool = flag(False, help="run under DDP's no_sync: nothing is sent")
    backwards: bool = flag(False, help="the forward uses the layers from the last built to the first")
    unused_on: int = whole(
        -1,
        low=-1,
        high=31,
        help="rank that leaves out a layer, -1: none; needs find_unused_parameters",
    )
    slow_rank: int = whole(-1, low=-1, high=31, help="rank whose data loader is slow, -1: none")
    slow_ms: float = number(100.0, low=0.0, high=5000.0, help="how long that data loader takes")
    repeats: int = whole(5, low=1, high=50, help="timed backwards, each beside one that only computes")

    def __post_init__(self) -> None:
        super().__post_init__()
        set_ones = [name for name in DDP_ONLY if getattr(self, name)] + ["unused_on"] * (self.unused_on >= 0)
        if set_ones and self.implementation != "torch":
            raise WrongValue(
                f"{set_ones[0]} is DDP's, but implementation is {self.implementation}. "
                f"Use implementation torch, or leave {set_ones[0]} out."
            )
        if self.static_graph and self.no_sync:
            raise WrongValue(
                "static_graph and no_sync are both true, and torch's DDP fails on the first backward of that pair: "
                "a static graph must be learned in an iteration that is reduced. Choose one of the two."
            )
        if self.unused_on >= 0 and self.layers == 1:
            raise WrongValue("unused_on leaves out a layer, but layers is 1. Give 2 or more layers, or no unused_on.")

        size = self.layers * self.width**2 * BYTES[self.dtype] + self.small_tensors * SMALL_BYTES
        if size > LARGEST:
            raise WrongValue(
                f"{self.layers} layers of {self.width} x {self.width} in {self.dtype} are {size / MIB:.0f} MiB of "
                f"gradients, but at most {LARGEST // MIB} MiB are allowed. Give fewer layers, or a smaller width."
            )

    def check_world_size(self, world_size: int) -> None:
        super().check_world_size(world_size)
        for name in ("slow_rank", "unused_on"):
            if getattr(self, name) >= world_size:
                raise WrongValue(
                    f"{name} is {getattr(self, name)}, but there are {world_size} ranks, from 0 to {world_size - 1}. "
                    "Give one of these, or -1 for none."
                )

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        buckets = [bucket["bytes"] for bucket in run.results[0]["buckets"]]
        return {"communication": {"bucket_bytes": buckets, "overlap": _time_facts(run)["overlap_fraction"]}}

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what travelled, when, and what of it backward did not hide; see the three parts."""
        return {**_gradient_facts(run), **_time_facts(run), **_wire_facts(run)}


def _gradient_facts(run) -> dict[str, Any]:
    """The buckets, and the gradient against one process in float64 on the whole batch.

    bucket_bytes                  of each bucket in the order of sending, after DDP has rebuilt them
    first_iteration_bucket_bytes  the same in the first iteration
    ready_in_order                whether the buckets became ready in the order in which they were sent, on rank 0
    gradients_share_buckets       whether a gradient's memory is its bucket's; held_bytes, rank by rank, of gradients
                                  and buckets together
    max_rel_error                 over parameter tensors the largest max|difference| / max|true|, on rank 0;
                                  gradients_equal below the dtype's tolerance and bit for bit the same on every rank
    """
    worst, identical = run.results[0]["max_rel_error"], len({result["digest"] for result in run.results}) == 1
    buckets = run.results[0]["buckets"]
    ready = [bucket["ready_s"] for bucket in buckets]
    return {
        "bucket_bytes": [bucket["bytes"] for bucket in buckets],
        "first_iteration_bucket_bytes": run.results[0]["first_iteration_bucket_bytes"],
        "ready_in_order": ready == sorted(ready) if ready else None,
        "gradient_bytes": run.results[0]["gradient_bytes"],
        "gradients_share_buckets": all(result["gradients_share_buckets"] for result in run.results),
        "held_bytes": [result["held_bytes"] for result in run.results],
        "gradients_equal": identical and worst < TOLERANCE[run.config["dtype"]],
        "max_rel_error": worst,
        "ranks_identical": identical,
    }


def _time_facts(run) -> dict[str, Any]:
    """Seconds, medians over repeats with their least and most in `..._range_s`.

    backward_s        from the latest start of backward over ranks to the last rank's gradients being averaged
    compute_s         the same backward in the same run without communication, in turns with the others
    exposed_s         backward_s - compute_s: what overlap did not hide
    communication_s   during how much of a traced backward at least one bucket is in flight between all ranks; with
                      hundreds of buckets tracing makes it longer than it is
    overlap_fraction  the part of communication_s that is hidden, 1 - exposed_s / communication_s, within 0 and 1; of
                      backward_s where that is the shorter one; None where nothing was sent
    step_s            from the first rank's asking for its data to the last rank's gradients being averaged
    waits_for         the rank that came to the first bucket last in every traced iteration, later than the one before
                      it by more than a quarter of compute_s and 10 ms; None: nobody, or now one and now another.
                      lateness_s: by how much each rank comes later than the first
    clock             how the ranks' clocks were aligned, and clock_uncertainty_s
    """
    times = run.results[0]["times"]
    exposed = [with_it - alone for with_it, alone in zip(times["backward"], times["compute"], strict=True)]
    found = {"exposed_range_s": [min(exposed), max(exposed)]}
    for name, seconds in times.items():
        found |= {f"{name}_s": statistics.median(seconds), f"{name}_range_s": [min(seconds), max(seconds)]}
    in_flight = run.results[0]["communication"]
    communication, exposed_s = statistics.median(in_flight), found["backward_s"] - found["compute_s"]
    at_most = min(communication, found["backward_s"]) if run.environment.world_size > 1 else 0.0
    lateness = [statistics.median(result["lateness"]) for result in run.results]
    last = max(range(len(lateness)), key=lateness.__getitem__)
    traced = list(zip(*(result["lateness"] for result in run.results), strict=True))  # iteration by iteration
    least = min(of_ranks[last] - max([0.0, *of_ranks[:last], *of_ranks[last + 1 :]]) for of_ranks in traced)
    return found | {
        "exposed_s": exposed_s,
        "communication_s": communication,
        "communication_range_s": [min(in_flight), max(in_flight)],
        "overlap_fraction": min(1.0, max(0.0, 1 - exposed_s / at_most)) if at_most else None,
        "waits_for": last if least > max(LATE_S, LATE * found["compute_s"]) else None,
        "lateness_s": lateness,
        "clock": "; ".join(sorted({result["clock"]["how"] for result in run.results})),
        "clock_uncertainty_s": max(result["clock"]["uncertainty_s"] for result in run.results),
    }


def _wire_facts(run) -> dict[str, Any]:
    """Of one iteration: the all-reduces that a rank issues, and the bytes that each rank sends. The prediction has
    gloo's framing, named apart, and with find_unused_parameters the bitmap of used parameters, one int32 each.
    """
    k, result, item = run.environment.world_size, run.results[0], BYTES[run.config["dtype"]]
    payloads = [] if run.config["no_sync"] else [(bucket["bytes"] // item, item) for bucket in result["buckets"]]
    bitmap = [(result["parameters"], 4)] if run.config["find_unused_parameters"] and payloads else []
    sent = [traffic.gloo_all_reduce(n, k, element_size=size) for n, size in payloads + bitmap]
    framing = [sum(one[rank].framing for one in sent) for rank in range(k)]
    if run.environment.wire == COUNTED:
        framing = [0] * k
    return {
        "all_reduces": result["all_reduces"],
        "wire_bytes": [one["wire_bytes"] for one in run.results],
        "wire_bytes_predicted": [sum(one[rank].payload for one in sent) + framing[rank] for rank in range(k)],
        "framing_bytes_predicted": framing,
    }
