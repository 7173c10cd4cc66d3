"""What if the ranks do not hold equally many samples, or tokens?

A row of `tokens` is a rank, an entry one of its micro-batches: a sequence of so many tokens. Three rules turn the
losses of the tokens into the loss that a rank calls backward on, and DDP averages the gradients over ranks:

    mean_of_micro_means    each micro-batch takes its own mean; a rank averages these
    mean_of_rank_means     a rank takes the mean over all its tokens
    weighted               a rank takes local_sum * k / N_total: the gradient of the true mean

The reference is one process in the same dtype that holds every token. With `loss_sums` a token's loss is its micro-
batch's sum over its tokens, times one weight w = 1, so that loss and gradient are the same number and can be checked
by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import DTYPES, Question, WrongValue, choice, rows
from dpviz.questions.equivalence import TOLERANCE

RULES = ("mean_of_micro_means", "mean_of_rank_means", "weighted")


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    tokens: tuple[tuple[int, ...], ...] = rows(
        ((10, 30), (60, 100)), low=0, high=4096, integers=True, help="tokens of each rank's micro-batches"
    )
    loss_sums: tuple[tuple[float, ...], ...] | None = rows(
        None, low=-1e9, high=1e9, help="instead of a model: the summed loss of each micro-batch, in the shape of tokens"
    )
    objective: str = choice("token", ("token", "sequence"), help="what counts the same: every token, or every sequence")
    mask: str = choice("all", ("all", "response_only"), help="which tokens enter the loss: all, or the second half")
    join: str = choice(
        "none", ("none", "initial", "effective"), help="torch's Join, and which world size it divides by"
    )
    model: str = choice("mlp", ("mlp", "transformer"), help="the model, where there are no loss_sums")
    dtype: str = choice("float64", DTYPES, help="type of parameters, gradients and what travels")

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = [len(row) for row in self.tokens]
        if self.join == "none" and len(set(shape)) > 1:
            raise WrongValue(
                f"the ranks have {', '.join(map(str, shape))} micro-batches, but without join all need as many. "
                "Give rows of equal length, or join initial or effective."
            )
        if not any(map(sum, self.tokens)):
            raise WrongValue(
                "tokens holds no token at all, so there is no mean. Give at least one micro-batch a token."
            )
        if self.loss_sums is not None:
            if [len(row) for row in self.loss_sums] != shape:
                raise WrongValue("loss_sums does not have the shape of tokens. Give each micro-batch one sum.")
            pairs = [pair for rows in zip(self.tokens, self.loss_sums, strict=True) for pair in zip(*rows, strict=True)]
            if any(count == 0 and total != 0 for count, total in pairs):
                raise WrongValue("a micro-batch without tokens has a loss, but it can have none. Give it the sum 0.")
            if self.mask != "all":
                raise WrongValue("mask response_only needs a model, to know each token's loss. Leave out loss_sums.")

    def implied_world_size(self) -> int:
        return len(self.tokens)

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        tokens = [sum(result["counts"]) for result in run.results]
        return {"data": {"tokens": tokens}, "batch": {"global_tokens": sum(tokens)}}

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return losses and gradients of each rule against the reference; NaN where a rule divides nothing by nothing.

        relative_bias        (mean_of_rank_means - global_mean) / global_mean
        gradient_error_*     length of the difference to the reference's gradient, over the length of that; equal below
                             `tolerance`
        gradient_norms       length of each rule's gradient, and of `all_reduced_loss`: the loss summed over ranks
                             before backward, which autograd does not see
        token_weights        {rule: what a token of each micro-batch weighs, rank by rank, over 1/N}, as autograd found
                             on the ranks; None where there is no token
        join_gradient_norms  length of the gradient after each batch of the rank that has most, under Join
        """
        import numpy

        first = run.results[0]
        reference = numpy.asarray(first["reference_gradient"])
        length, true_mean = numpy.linalg.norm(reference), first["reference_loss"]

        def error(rule: str) -> float:
            difference = numpy.linalg.norm(numpy.asarray(first["gradients"][rule]) - reference)
            return float(difference / length) if length else 0.0 if difference == 0 else float("inf")

        counts = [result["counts"] for result in run.results]
        return {
            **{rule: first["losses"][rule] for rule in RULES},
            "global_mean": first["reference_loss"],
            "relative_bias": first["losses"]["mean_of_rank_means"] / true_mean - 1 if true_mean else float("nan"),
            "gradient_error_micro": error("mean_of_micro_means"),
            "gradient_error_naive": error("mean_of_rank_means"),
            "gradient_error_weighted": error("weighted"),
            "tolerance": TOLERANCE[run.config["dtype"]],
            "gradient_norms": {name: float(numpy.linalg.norm(vector)) for name, vector in first["gradients"].items()},
            "reference_norm": float(numpy.linalg.norm(reference)),
            "tokens_in_loss": counts,
            "token_weights": {rule: _times_total(run, rule, sum(map(sum, counts))) for rule in RULES},
            "join_gradient_norms": max((result["join_gradient_norms"] for result in run.results), key=len),
        }


def _times_total(run, rule: str, total: int) -> list[list[float | None]]:
    """Return what a token of each micro-batch weighs under `rule`, rank by rank, in units of 1/N."""
    return [[total * weight if weight == weight else None for weight in r["weights"][rule]] for r in run.results]
