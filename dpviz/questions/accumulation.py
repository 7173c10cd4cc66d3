"""What do K micro-batches cost, and how often must the ranks communicate?

A rank goes through `batches` micro-batches in windows of K = accumulation_steps; each window ends in an optimizer
update. The true gradient of a window is the mean over its micro-batches on all ranks, one process in float64.

    last                  torch's no_sync() round forward and backward of all but the window's last micro-batch
    every                 no no_sync(): an all-reduce for each micro-batch
    backward_only         no_sync() round the backward alone, which is too late: DDP has decided in the forward
    flag_after_forward    the flag that no_sync() sets, set by hand between forward and backward
    off_by_one            no_sync() for all but the window's first micro-batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, flag, rows, whole
from dpviz.questions.equivalence import BYTES, TOLERANCE
from dpviz.records import COUNTED
from dpviz.theory import traffic


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    accumulation_steps: int = whole(4, low=1, high=64, help="micro-batches a rank before one optimizer update, K")
    sync: str = choice(
        "last",
        ("last", "every", "backward_only", "flag_after_forward", "off_by_one"),
        help="how the all-reduce is kept to the window's last micro-batch",
    )
    scale: str = choice(
        "by_k",
        ("by_k", "by_window", "none"),
        help="what each micro-batch's loss is divided by: K, or its window's length",
    )
    batches: int = whole(
        0, low=0, high=512, help="micro-batches a rank goes through in all, the last window may be short; 0: 2 K"
    )
    micro_batch: int = whole(4, low=1, high=256, help="samples in a micro-batch, B")
    recompute: bool = flag(False, help="keep the model's inputs alone, and compute the rest again in backward")
    inputs: tuple[tuple[float, ...], ...] | None = rows(
        None, low=-1e9, high=1e9, help="instead of a model: y = w * x, the x of each rank's micro-batches"
    )
    model: str = choice("mlp", ("mlp", "transformer"), help="the model, where there are no inputs")
    data: str = choice("digits", ("digits", "text"), help="what it learns")
    optimizer: str = choice("sgd", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs is not None:
            lengths = {len(row) for row in self.inputs}
            if len(lengths) > 1:
                raise WrongValue(
                    "the rows of inputs differ in length, but every rank has as many micro-batches. Make them equal."
                )
            object.__setattr__(self, "batches", lengths.pop())
            if self.recompute:
                raise WrongValue("recompute needs a model. Leave out inputs, or recompute.")

    def implied_world_size(self) -> int | None:
        return None if self.inputs is None else len(self.inputs)

    def micro_batches(self) -> int:
        """Return how many micro-batches a rank goes through: two full windows where `batches` is 0."""
        return self.batches or 2 * self.accumulation_steps

    def updates(self) -> int:
        """Return how many windows they make, a short last one included."""
        return -(-self.micro_batches() // self.accumulation_steps)

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what an update is made of, and what it cost.

        all_reduces               of the first update on one rank: the most that any rank issued
        all_reduces_by_micro_batch  the same, micro-batch by micro-batch, on rank 0
        gradient_scale            measured over true gradient, of the first update; gradient_scale_by_update of each:
                                  the factor that fits best, the largest over ranks
        gradient_error            length of the difference to the true gradient over the true length, first update
        gradients_equal           that length is within the dtype's tolerance, on every rank and at every update
        gradients                 length of the first update's gradient, rank by rank; true_gradient that of one process
        ranks_identical           parameters bit for bit after every update; first_divergent_step where they part
        update_norm               length of the first update's step on rank 0
        activation_bytes          of a rank: what autograd keeps of one micro-batch for its backward
        activations               of rank 0, for a micro-batch and for a whole window at once, kept and recomputed
        model_state_bytes         of a rank: parameters, gradients and optimizer state
        forward_backward_s        seconds of computing and communicating an update, rank by rank: the median over
                                  updates, and in forward_backward_range_s [least, most]
        """
        k, config = run.environment.world_size, run.config
        updates = [[step.values for step in records] for records in run.records]
        scales = [max((rank[i]["scale"] for rank in updates), key=abs) for i in range(len(updates[0]))]
        parted = [i for i in range(len(scales)) if len({rank[i]["digest"] for rank in updates}) > 1]
        sizes = run.results[0]["bucket_elements"]
        item = BYTES[config["dtype"]]
        framing = [0] * k
        if run.environment.wire != COUNTED and k > 1:
            framing = [traffic.gloo_all_reduce(sizes, k, element_size=item)[rank].framing for rank in range(k)]
        calls = max(values["all_reduces"] for values in updates[0])
        payload = traffic.ring_all_reduce_bytes(sizes * item, k)
        return {
            "all_reduces": calls,
            "all_reduces_by_micro_batch": updates[0][0]["all_reduces_by_micro_batch"],
            "all_reduces_in_all": sum(values["all_reduces"] for values in updates[0]),
            "updates": len(scales),
            "gradient_scale": scales[0],
            "gradient_scale_by_update": scales,
            "gradient_error": max(rank[0]["error"] for rank in updates),
            "gradients_equal": all(step["error"] < TOLERANCE[config["dtype"]] for rank in updates for step in rank),
            "gradients": [rank[0]["norm"] for rank in updates],
            "true_gradient": updates[0][0]["true_norm"],
            "update_norm": updates[0][0]["update_norm"],
            "ranks_identical": not parted,
            "first_divergent_step": parted[0] if parted else None,
            "wire_bytes": [result["wire_bytes"] for result in run.results],
            "wire_bytes_predicted": [calls * (payload + header) for header in framing],
            "framing_bytes_predicted": [calls * header for header in framing],
            "gradient_bytes": sizes * item,
            "activation_bytes": [result["activation_bytes"] for result in run.results],
            "activations": run.results[0]["activations"],
            "model_state_bytes": [result["model_state_bytes"] for result in run.results],
            "forward_backward_s": [result["forward_backward_s"] for result in run.results],
            "forward_backward_range_s": [[min(r["seconds"]), max(r["seconds"])] for r in run.results],
            "samples": k * config["accumulation_steps"] * (config["micro_batch"] if config["inputs"] is None else 1),
        }
