"""Gather, use, scatter: what does it cost to hold a layer only while it is used, and can fetching it hide?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, flag, number, whole


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    implementation: str = choice("torch", ("torch", "by_hand"), help="FSDP2 (fully_shard), or dpviz.parallel.fsdp")
    reshard_after_forward: bool = flag(True, help="free a layer after its forward, and gather it again for backward")
    wrap: str = choice(
        "each_layer",
        ("each_layer", "some_layers", "whole_model"),
        help="what is gathered in one message: a layer, or all; some_layers: every second layer, the rest together",
    )
    prefetch: int = whole(0, low=0, high=8, help="layers that are gathered ahead of the one in use")
    reduce_scatter: str = choice("ring", ("ring", "gloo"), help="a ring by hand, or gloo's, which is an all-reduce")
    sync: str = choice("every", ("every", "last"), help="reduce gradients after every micro-batch, or after the last")
    accumulation_steps: int = whole(1, low=1, high=64, help="micro-batches a rank and step, K")
    micro_batch: int = whole(4, low=1, high=1024, help="samples in a micro-batch, B")
    mixed_precision: bool = flag(False, help="gather and reduce in bfloat16; FSDP2 only")
    layers: int = whole(4, low=1, high=64, help="layers of the model")
    width: int = whole(64, low=1, high=2048, help="their width")
    data: str = choice("digits", ("digits", "text"), help="images or text")
    optimizer: str = choice("adamw", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    lr: float = number(0.01, low=0.0, high=100.0, help="learning rate")
    steps: int = whole(4, low=2, high=50, help="optimizer updates; the last one is counted and timed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixed_precision and (self.implementation == "by_hand" or self.dtype != "float32"):
            raise WrongValue(
                f"mixed_precision needs implementation torch and dtype float32, but they are {self.implementation} "
                f"and {self.dtype}. Set these, or mixed_precision false."
            )

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what a step took.

        bytes_per_rank          {parameters, gradients, optimizer} of each rank, after backward and before the step
        peak_bytes              of all tensors of a rank within a step; results' "memory" has them by kind and moment
        whole_model_bytes       N parameters unsharded; groups how many are gathered one by one
        wire_bytes              what each rank sent in the last step; wire_over_payload the most that one sent over P,
                                padding and headers included
        all_gathers, reduce_scatters   calls of the last step on one rank
        max_difference_from_ddp of the losses, over ranks and steps, from torch's DDP on the same data
        gather_s, waiting_s     seconds of the traced step in which gloo had a gather under way, and of these in which
                                computing waited for one, of the rank that waited longest
        hidden_fraction         1 - waiting_s / gather_s
        seconds                 {median, min, max} of a step, over ranks and steps but the first
        """
        results = run.results
        sent = [result["wire_bytes"] for result in results]
        payload = results[0]["parameters"] * results[0]["wire_item_bytes"]
        seconds = [one for result in results for one in result["seconds"][1:]]
        waits = [(result["waiting_s"], result["gather_s"]) for result in results]
        waiting, gathering = max(waits)
        return {
            "bytes_per_rank": [result["bytes"] for result in results],
            "model_state_bytes": [sum(result["bytes"].values()) for result in results],
            "peak_bytes": [result["memory"]["peak"] for result in results],
            "whole_model_bytes": results[0]["parameters"] * results[0]["item_bytes"],
            "parameters": results[0]["parameters"],
            "groups": results[0]["groups"],
            "wire_bytes": sent,
            "payload_bytes": payload,
            "wire_over_payload": max(sent) / payload,
            "all_gathers": results[0]["all_gathers"],
            "reduce_scatters": results[0]["reduce_scatters"],
            "max_difference_from_ddp": max(
                abs(a - b) for r in results for a, b in zip(r["losses"], r["losses_of_ddp"], strict=True)
            ),
            "final_loss": statistics.fmean(result["losses"][-1] for result in results),
            "gather_s": gathering,
            "waiting_s": waiting,
            "hidden_fraction": 1 - waiting / gathering if gathering else 0.0,
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "clock": results[0]["clock"],
        }
