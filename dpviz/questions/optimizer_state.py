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

from dataclasses import dataclass
from typing import Any

from dpviz.contract import compare
from dpviz.questions.base import Question, WrongValue, choice, number, whole

MAX_NORM = 5.0  # gradients are clipped to this
CHECKS = ("step", "lr", "scaler", "tokens", "norm", "gradients", "optimizer", "parameters")
EVIDENCE = (*CHECKS, "initial", "batch", "samples", "probe", "checksum", "dropout")  # for the contract
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

BEFORE = {  # updates that there must be before the fault
    "stale_checkpoint": (2, "two updates before it, to have an older checkpoint"),
    "resume_without_optimizer": (1, "an update before it, to have a checkpoint"),
    "resume_without_scaler": (1, "an update before it, to have a checkpoint"),
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
        before, why = BEFORE.get(self.fault, (0, ""))
        if self.fault_step < before:
            raise WrongValue(f"fault_step is {self.fault_step}, but {self.fault} needs {why}. Give at least {before}.")

    def check_world_size(self, world_size: int) -> None:
        if self.fault_rank >= world_size and self.fault != "none":
            raise WrongValue(f"fault_rank is {self.fault_rank}, but there are {world_size} ranks, numbered from 0.")

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        """Return each step's evidence, and what the run is: data, loss, update rule, checkpoints."""
        config, by_number = run.config, [{step.step: step.values for step in records} for records in run.records]
        common = sorted(set.intersection(*map(set, by_number)))
        if not common:  # the run failed before its first step was over
            return {}
        of_steps = [tuple(of_rank[number] for of_rank in by_number) for number in common]
        last = of_steps[-1]
        return {
            "data": {
                "name": "digits",
                "samples": [sum(values["samples"] for values in of_rank) for of_rank in zip(*of_steps, strict=True)],
                "mask": "none",
            },
            "batch": {"counted_samples": sum(values["samples"] for values in of_steps[0])},
            "loss": {"reduction": "sum", "divided_by": "the samples of all ranks", "selection": "every sample"},
            "update": {
                "schedule": {"kind": "cosine", "lr": config["lr"], "steps": config["steps"]},
                "clipping": {"max_norm": MAX_NORM, "where": "after the all-reduce and unscaling"},
                "loss_scale": {"at the end": last[0]["scaler"], "overflow": "skipped"},
            },
            "consistency": {"steps": [_evidence(of_ranks) for of_ranks in of_steps]},
            "recoverability": {
                "checkpoints": _checkpoints(of_steps),
                "data_progress": sum(values["samples"] for of_ranks in of_steps for values in of_ranks),
                "random_state": [values["random_state"] for values in last],
            },
        }

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
            "learning_rates_expected": [compare.cosine(number, run.config["steps"]) for number in range(len(rates))],
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
            off = compare.off_schedule(values, updates=of_ranks[0]["number"] + 1, schedule=config)
        elif check == "norm":
            off = compare.not_finite(values)
        else:
            off = compare.unequal(values)
        if off:
            found[check] = off
    if "norm" in found:  # what is not a number was not dropped either
        return found
    same = compare.shared([values["dropout"] for values in of_ranks])
    return found | ({"dropout": same} if same else {})


def _evidence(of_ranks: tuple[dict, ...]) -> dict[str, Any]:
    """Return the values of every check that the ranks recorded in one step."""
    number = of_ranks[0]["number"]
    names = [name for name in EVIDENCE if number == 0 or name != "initial"]
    return {"number": number, "values": {name: [values[name] for values in of_ranks] for name in names}}


def _checkpoints(of_steps: list[tuple[dict, ...]]) -> list[dict[str, Any]]:
    """Return what the ranks resumed from, at the first step that they made after it; an empty list where they did
    not.
    """
    for of_ranks in of_steps:
        resumed = [values["resumed_from"] for values in of_ranks]
        if all(resumed):
            at = {"step": of_ranks[0]["number"], "versions": [one["version"] for one in resumed]}
            return [at | {"parts": [one["parts"] for one in resumed]}]
    return []


def _spread(of_ranks: tuple[dict, ...]) -> float:
    return max(max(column) - min(column) for column in zip(*(values["sample"] for values in of_ranks), strict=True))
