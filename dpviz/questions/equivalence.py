"""Do k ranks compute the gradient of the whole batch?

The reference is one process in float64 on the whole batch, with the same reduction: the mean over all its samples, or
their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, flag, number, whole
from dpviz.records import COUNTED
from dpviz.theory import traffic
from dpviz.theory.memory import BYTES

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    accumulation_steps: int = whole(1, low=1, high=64, help="micro-batches a rank before one optimizer update, K")
    micro_batch: int = whole(4, low=1, high=256, help="samples in a micro-batch, B")
    reduction: str = choice("mean", ("mean", "sum"), help="how a loss is made of a micro-batch's samples")
    average: bool = flag(True, help="divide the summed gradient by k")
    all_reduce: str = choice(
        "before_step", ("before_step", "none", "after_step"), help="when the gradients are summed over ranks"
    )
    norm: str = choice("none", ("none", "layer", "batch"), help="normalisation after the hidden layer")
    broadcast_buffers: bool = flag(True, help="before each forward give every rank the buffers of rank 0, as DDP does")
    model: str = choice("mlp", ("mlp", "transformer", "weight"), help="mlp, transformer, or y = w * x")
    data: str = choice("digits", ("digits", "text", "count"), help="images, text, or x = 1, 2, 3, ...")
    optimizer: str = choice("sgd", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    lr: float = number(0.1, low=0.0, high=100.0, help="learning rate")
    steps: int = whole(1, low=1, high=50, help="optimizer updates")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model == "weight") != (self.data == "count"):
            raise WrongValue(
                f"model {self.model} cannot learn data {self.data}. "
                "weight goes with count, mlp and transformer with digits or text."
            )
        if self.model == "weight" and self.norm != "none":
            raise WrongValue(
                f"norm is {self.norm!r}, but the model weight has no hidden layer. Use norm none, or another model."
            )
        if self.norm == "batch" and self.model == "mlp" and self.data == "digits" and self.micro_batch == 1:
            raise WrongValue(
                "micro_batch is 1, but batch norm needs more than one value to take a variance of. Give 2 or more."
            )

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return the named numbers of lesson 01; see `_gradient_facts`, `_rank_facts` and `_wire_facts` for what each
        means.
        """
        return {**_gradient_facts(run), **_rank_facts(run), **_wire_facts(run)}


def _gradient_facts(run) -> dict[str, Any]:
    """The first update's gradient against the reference.

    error_by_tensor    max|difference| / max|reference|, a parameter tensor; the largest over ranks
    gradients_equal    whether the largest of these is below the tolerance of the dtype
    update_ratio       length of the first update over that of one process with the same optimizer
    """
    import numpy

    names, sizes = run.results[0]["names"], run.results[0]["sizes"]
    reference = numpy.asarray(run.results[0]["reference"], dtype=float)
    ends = numpy.cumsum(sizes)[:-1]
    absolute, relative = {}, {}
    for name, wanted, *seen in zip(
        names,
        numpy.split(reference, ends),
        *(numpy.split(numpy.asarray(r["reduced"]), ends) for r in run.results),
        strict=True,
    ):
        absolute[name] = max(float(numpy.abs(one - wanted).max()) for one in seen)
        largest = float(numpy.abs(wanted).max())
        relative[name] = (
            absolute[name] / largest if largest else float("inf") * (absolute[name] > 0) if absolute[name] else 0.0
        )
    worst = max(relative.values())
    return {
        "gradients_equal": worst < TOLERANCE[run.config["dtype"]],
        "max_rel_error": worst,
        "tolerance": TOLERANCE[run.config["dtype"]],
        "max_abs_error": max(absolute.values()),
        "error_by_tensor": relative,
        "gradient_norm": float(numpy.linalg.norm(run.results[0]["reduced"])),
        "reference_norm": float(numpy.linalg.norm(reference)),
        "update_ratio": run.results[0]["update_norm"] / run.results[0]["reference_update_norm"]
        if run.results[0]["reference_update_norm"]
        else 1.0,
        "samples": run.environment.world_size * run.config["accumulation_steps"] * run.config["micro_batch"],
    }


def _rank_facts(run) -> dict[str, Any]:
    """Whether the ranks hold the same.

    ranks_identical               parameters bit for bit, after every update
    first_divergent_step          the first update after which they are not, None where there is none
    buffers_identical             buffers after the last update
    buffers_identical_in_forward  buffers as the first forward of every update found them
    """
    parted = _first_divergence(run, "parameters_digest")
    return {
        "ranks_identical": parted is None,
        "first_divergent_step": parted,
        "buffers_identical": len({records[-1].values["buffers_digest"] for records in run.records}) == 1,
        "buffers_identical_in_forward": _first_divergence(run, "buffers_digest_in_forward") is None,
        "losses": [[step.loss for step in records] for records in run.records],
    }


def _first_divergence(run, name: str) -> int | None:
    digests = [[step.values[name] for step in records] for records in run.records]
    return next((step for step, of_ranks in enumerate(zip(*digests, strict=True)) if len(set(of_ranks)) > 1), None)


def _wire_facts(run) -> dict[str, Any]:
    """The all-reduces of an update as rank 0 issued them. Bytes an update, a rank: measured, and what the formulas say
    of one all-reduce a parameter tensor. The framing is gloo's own, named apart but part
    of the prediction.
    """
    k, steps, item = run.environment.world_size, run.config["steps"], BYTES[run.config["dtype"]]
    sizes = run.results[0]["sizes"]
    buffers = run.results[0]["buffer_bytes"] if run.config["broadcast_buffers"] and k > 1 else []
    reduced = sizes if run.config["all_reduce"] != "none" and k > 1 else []
    framing = [
        sum(sent[rank].framing for sent in (traffic.gloo_all_reduce(n, k, element_size=item) for n in reduced))
        for rank in range(k)
    ]
    gradients = traffic.ring_all_reduce_bytes(sum(reduced) * item, k)
    broadcasts = [sum(traffic.broadcast_bytes(size, k)[rank] for size in buffers) for rank in range(k)]
    framing = [
        header + len(buffers) * more for header, more in zip(framing, traffic.broadcast_framing_bytes(k), strict=True)
    ]
    if run.environment.wire == COUNTED:
        framing = [0] * k  # what is counted at the collectives is the payload alone
    return {
        "all_reduces": run.records[0][0].values["all_reduces"],
        "gradient_bytes": sum(sizes) * item,
        "wire_bytes": [round(wire.sent / steps) for wire in run.wire],
        "wire_bytes_predicted": [
            gradients + header + broadcast for header, broadcast in zip(framing, broadcasts, strict=True)
        ],
        "framing_bytes_predicted": framing,
    }
