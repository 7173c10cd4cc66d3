"""Which steps must be the same on every rank? One fault at a time, switched on in a training run that is right
without it.

Ranks that should be replicas are compared after every update, by cheap fingerprints and without one collective more:

    step, lr, scaler, tokens            numbers: updates made, learning rate, loss scale, the N that divides losses
    norm                                the length of the gradient as clipping found it, which should be finite
    gradients, optimizer, parameters    digests: after the all-reduce, moments, weights
    dropout                             the mask, which should differ from rank to rank
    timeout                             a collective that some rank did not come to
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, number, whole

CHECKS = ("step", "lr", "scaler", "tokens", "norm", "gradients", "optimizer", "parameters")
FAULTS = {
    "none": "nothing is wrong",
    "no_all_reduce": "no rank calls the all-reduce in the fault step",
    "skipped_step": "the fault rank leaves out one optimizer step",
    "lr_differs": "the fault rank has twice the learning rate from the fault step on",
    "overflow_on_one_rank": "only the fault rank finds an infinite gradient, and decides alone to skip",
    "unchecked_infinity": "the fault rank's loss is infinite in the fault step, and nobody looks before clipping",
    "token_weights_differ": "the fault rank divides by its own tokens instead of everybody's from the fault step on",
    "left_out_collective": "the fault rank goes round one all-reduce",
    "stale_checkpoint": "all resume in the fault step, the fault rank from a checkpoint that is one update older",
    "resume_without_optimizer": "all resume in the fault step, the fault rank without the optimizer's moments",
    "resume_without_scaler": "all resume in the fault step, the fault rank without the loss scale",
    "scheduler_steps_k_times": "every rank steps the schedule k times an update",
    "schedule_by_own_tokens": "the fault rank's schedule goes by its own tokens, a k-th of all, from the fault step on",
    "edited_parameter": "one parameter is raised by 1 on the fault rank",
    "different_init": "the fault rank starts from other parameters",
    "same_dropout_mask": "all ranks seed dropout alike",
}


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    fault: str = choice("none", tuple(FAULTS), help="what goes wrong")
    fault_rank: int = whole(1, low=0, high=31, help="where, if it is one rank's")
    fault_step: int = whole(3, low=0, high=999, help="in which update, from 0")
    steps: int = whole(8, low=1, high=1000, help="optimizer updates")
    micro_batch: int = whole(8, low=1, high=256, help="samples a rank and update, B")
    optimizer: str = choice("adamw", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    lr: float = number(0.01, low=0.0, high=10.0, help="learning rate at the start of its cosine schedule")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fault != "none" and self.fault_step >= self.steps:
            raise WrongValue(
                f"fault_step is {self.fault_step}, but there are {self.steps} updates, numbered from 0. "
                f"Give at most {self.steps - 1}, or more steps."
            )
        if self.fault == "stale_checkpoint" and self.fault_step < 2:
            raise WrongValue(
                "stale_checkpoint needs two updates before it, to have an older checkpoint. Give fault_step 2."
            )

    def check_world_size(self, world_size: int) -> None:
        if self.fault_rank >= world_size and self.fault != "none":
            raise WrongValue(f"fault_rank is {self.fault_rank}, but there are {world_size} ranks, numbered from 0.")

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return when ranks first differed, which, and which checks saw it.

        first_divergent_step   from 0; None where no check saw anything
        divergent_ranks        those that differ from the majority, or from the schedule; all where no value leads
        detected_by            the checks that see it in that step, cheapest first
        differences            a step: {check: ranks that it finds different}
        learning_rates         over the first, as in effect after 0, 1, ... updates of rank 0; learning_rates_expected
        same_dropout_mask      whether two ranks dropped the same units in some step
        parameter_spread       a step: the largest difference between ranks in a few sampled parameters
        """
        steps = [[step.values for step in records] for records in run.records]
        seen = [_differences(of_ranks, run.config) for of_ranks in zip(*steps, strict=False)]
        first = next((number for number, found in enumerate(seen) if found), None)
        found = seen[first] if first is not None else {}
        rates = [1.0] + [values["lr"] / run.config["lr"] for values in steps[0]] if run.config["lr"] else []
        return {
            "first_divergent_step": first,
            "divergent_ranks": sorted(set().union(*found.values())),
            "detected_by": list(found),
            "differences": seen,
            "learning_rates": rates,
            "learning_rates_expected": [_cosine(number, run.config["steps"]) for number in range(len(rates))],
            "same_dropout_mask": any("dropout" in found for found in seen),
            "parameter_spread": [_spread(of_ranks) for of_ranks in zip(*steps, strict=False)],
            "losses": [[step.loss for step in records] for records in run.records],
        }

    @staticmethod
    def facts_of_failure(run, error) -> dict[str, Any] | None:
        """Return the facts of a launch that ended in `error`, None where that was not the fault's doing: the first step
        that a guilty rank has no record of.
        """
        if run.config["fault"] != "left_out_collective" or error.ranks != [run.config["fault_rank"]]:
            return None
        if "did not come to collective" not in error.why:
            return None
        recorded = {step.step for step in run.records[error.ranks[0]]}
        first = next((number for number in range(run.config["steps"]) if number not in recorded), None)
        others = [of_rank for rank, of_rank in enumerate(run.records) if rank not in error.ranks]
        done = max((step.step + 1 for of_rank in others for step in of_rank), default=0)
        return {
            "first_divergent_step": first,
            "divergent_ranks": error.ranks,
            "detected_by": ["timeout"],
            "differences": [*[{}] * done, {"timeout": error.ranks}],
            "why": error.why,
        }


def _differences(of_ranks: tuple[dict, ...], config: dict) -> dict[str, list[int]]:
    """Return {check: divergent ranks} of one step."""
    found = {}
    for check in CHECKS:
        values = [values[check] for values in of_ranks]
        if check == "lr":
            expected = config["lr"] * _cosine(of_ranks[0]["number"] + 1, config["steps"])
            off = [
                rank
                for rank, lr in enumerate(values)
                if not math.isclose(lr, expected, abs_tol=1e-9 * config["lr"] + 1e-15)
            ]
        elif check == "norm":
            off = [rank for rank, norm in enumerate(values) if not math.isfinite(norm)]
        else:
            off = _minority(values)
        if off:
            found[check] = off
    if "norm" in found:  # what is not a number was not dropped either
        return found
    same = [
        rank
        for rank, mask in enumerate(v["dropout"] for v in of_ranks)
        if [v["dropout"] for v in of_ranks].count(mask) > 1
    ]
    return found | ({"dropout": same} if same else {})


def _minority(values: list) -> list[int]:
    counted = collections.Counter(values).most_common(2)
    if len(counted) < 2:
        return []
    tied = counted[0][1] == counted[1][1]
    return [rank for rank, value in enumerate(values) if tied or value != counted[0][0]]


def _spread(of_ranks: tuple[dict, ...]) -> float:
    return max(max(column) - min(column) for column in zip(*(values["sample"] for values in of_ranks), strict=True))


def _cosine(updates: int, total: int) -> float:
    """The schedule in closed form: 1 at the start, 0 after `total` updates. Source: Loshchilov and Hutter, SGDR
    (2017).
    """
    return (1 + math.cos(math.pi * updates / total)) / 2
