"""What must a checkpoint hold, so that a run goes on as if it had not been interrupted, also on another number of
ranks?

All ranks train without interruption and write a checkpoint on the way. Then the first `resume_world_size` of them
start again from it, in a group of their own, with the same global batch, and the two curves are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import DTYPES, Question, WrongValue, choice, number, whole

PARTS = ("optimizer", "scheduler", "data_position", "rng")


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    without: str = choice("none", ("none", *PARTS), help="what the resumed run does not read")
    resume_world_size: int = whole(2, low=1, high=32, help="ranks that resume; they share the same global batch")
    stop_after: int = whole(6, low=1, high=500, help="updates before the checkpoint")
    steps: int = whole(16, low=2, high=1000, help="updates in all")
    global_batch: int = whole(32, low=1, high=4096, help="samples in an update, over all ranks")
    dropout: float = number(0.0, low=0.0, high=0.9, help="part of the hidden units that is dropped, rank by rank")
    lr: float = number(0.01, low=0.0, high=10.0, help="learning rate of AdamW at the start of its cosine schedule")
    dtype: str = choice("float64", DTYPES, help="type of parameters, gradients and what travels")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_after >= self.steps:
            raise WrongValue(f"stop_after is {self.stop_after}, but it must come before the end, {self.steps} updates.")

    def check_world_size(self, world_size: int) -> None:
        for size in (world_size, self.resume_world_size):
            if self.global_batch % size:
                raise WrongValue(f"a global batch of {self.global_batch} does not divide by {size}. Give a multiple.")
        if self.resume_world_size > world_size:
            raise WrongValue(
                f"resume_world_size is {self.resume_world_size}, but there are {world_size} ranks. Give fewer."
            )

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return both curves of the global batch's mean loss.

        losses              without interruption, an update each; losses_resumed those after the checkpoint, resumed
        max_difference      between the two
        first_divergent_step  the first update where they are more than 1e-9 apart, None where there is none
        """
        count, stop = run.config["resume_world_size"], run.config["stop_after"]
        curves = [result["losses"] for result in run.results]
        losses = [sum(of_ranks) / len(curves) for of_ranks in zip(*curves, strict=True)]
        resumed = [sum(of_ranks) / count for of_ranks in zip(*(r["resumed"] for r in run.results[:count]), strict=True)]
        differences = [abs(a - b) for a, b in zip(losses[stop:], resumed, strict=True)]
        first = next((stop + i for i, difference in enumerate(differences) if difference > 1e-9), None)
        return {
            "losses": losses,
            "losses_resumed": resumed,
            "max_difference": max(differences),
            "first_divergent_step": first,
        }
