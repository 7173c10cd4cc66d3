"""Which dimensions enter the global batch? A mesh of ranks, with a kind of parallelism along each axis."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, number, whole
from dpviz.questions.equivalence import BYTES
from dpviz.records import COUNTED
from dpviz.theory import batch, memory, mesh, traffic

MOST_RANKS = 16
MOST_SAMPLES = 3000  # of a step: the text has 3,390 different ones
LENGTH = 16  # tokens of a sample, T
KINDS = ("parameters", "gradients", "optimizer")
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2}


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    dp: int = whole(4, low=1, high=MOST_RANKS, help="copies of the model, each with data of its own, D")
    tp: int = whole(2, low=1, high=MOST_RANKS, help="ranks that share each matrix")
    pp: int = whole(2, low=1, high=MOST_RANKS, help="stages, each with some of the layers")
    cp: int = whole(1, low=1, high=MOST_RANKS, help="ranks that share each sequence")
    ep: int = whole(1, low=1, high=MOST_RANKS, help="ranks that would share the experts; their group is made, no more")
    expert_axis: str = choice(
        "inside_dp", ("inside_dp", "separate"), help="expert ranks are among the dp ranks, or a factor of their own"
    )
    shard: int = whole(1, low=1, high=MOST_RANKS, help="HSDP: ranks, among the dp, that divide the model state")
    micro_batch: int = whole(2, low=1, high=64, help="samples in a micro-batch, B")
    accumulation_steps: int = whole(8, low=1, high=64, help="micro-batches a replica and step, K")
    layers: int = whole(4, low=1, high=16, help="residual layers of the model")
    width: int = whole(32, low=8, high=256, help="their width; inside they are twice as wide")
    optimizer: str = choice("sgd", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    lr: float = number(0.1, low=0.0, high=100.0, help="learning rate, right for the true global batch")
    steps: int = whole(3, low=2, high=200, help="optimizer updates; the last one is measured")
    token_budget: float = number(1e6, low=1.0, high=1e15, help="tokens that the training is to consume in all")

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ["dp", "tp", "pp", "cp"] + ["ep"] * (self.expert_axis == "separate")
        ranks = self.implied_world_size()
        if ranks > MOST_RANKS:
            raise WrongValue(
                f"{' x '.join(names)} is {' x '.join(str(getattr(self, name)) for name in names)} = {ranks} ranks, "
                f"but a mesh may have at most {MOST_RANKS} here. Lower one of them."
            )
        for name, divisor, what, total, remedy in (
            ("ep", self.ep if self.expert_axis == "inside_dp" else 1, "dp", self.dp, "or expert_axis separate"),
            ("shard", self.shard, "dp", self.dp, "or another dp"),
            ("pp", self.pp, "layers", self.layers, "or other layers"),
            ("tp", self.tp, "twice width", 2 * self.width, "or another width"),
            ("cp", self.cp, "the tokens of a sample", LENGTH, "or leave it at 1"),
        ):
            if total % divisor:
                allowed = ", ".join(str(n) for n in range(1, MOST_RANKS + 1) if total % n == 0)
                raise WrongValue(
                    f"{name} is {divisor}, but it must divide {what}, {total}. Give one of {allowed}, {remedy}."
                )
        if self.samples > MOST_SAMPLES:
            raise WrongValue(
                f"dp * micro_batch * accumulation_steps is {self.samples} samples a step, but at most {MOST_SAMPLES} "
                "are allowed. Lower one of them."
            )

    @property
    def separate_ep(self) -> int:
        return self.ep if self.expert_axis == "separate" else 1

    @property
    def samples(self) -> int:
        return batch.global_batch(self.dp, micro_batch=self.micro_batch, accumulation_steps=self.accumulation_steps)

    def implied_world_size(self) -> int:
        return batch.world_size(self.dp, tp=self.tp, pp=self.pp, cp=self.cp, separate_ep=self.separate_ep)

    def axes(self) -> dict[str, int]:
        """Return the axes of the mesh that is made, outermost first, in Megatron's order."""
        of_dp = {"dp": self.dp} if self.shard == 1 else {"replicate": self.dp // self.shard, "shard": self.shard}
        separate = {"ep": self.ep} if self.separate_ep > 1 else {}
        return {"pp": self.pp, **of_dp, **separate, "cp": self.cp, "tp": self.tp}

    def more_groups(self) -> dict[str, list[list[int]]]:
        """Return the groups that lie across these axes: dp where it is cut in two, and experts inside of dp."""
        more = {}
        if self.shard > 1:
            more["dp"] = mesh.groups(self.axes(), ("replicate", "shard"))
        if self.ep > 1 and self.separate_ep == 1:
            finer = {"pp": self.pp, "outer": self.dp // self.ep, "ep": self.ep, "cp": self.cp, "tp": self.tp}
            more["ep"] = mesh.groups(finer, "ep")
        return more

    def groups(self) -> dict[str, list[list[int]]]:
        """Return {axis: lists of ranks}, of the mesh's axes and of those that lie across them."""
        axes = self.axes()
        return {axis: mesh.groups(axes, axis) for axis in axes} | self.more_groups()

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        """Return how dp lies in the mesh, which the config says of every experiment on it, and what the ranks read in a
        step and who their groups' ranks were, as far as they noted that; torch's classes keep no books.
        """
        config, results = Config(**run.config), run.results
        axes = {"dp": config.dp, "tp": config.tp, "pp": config.pp, "cp": config.cp} | (
            {"ep": config.ep} if config.separate_ep > 1 else {}
        )
        noted = [isinstance(result, dict) and {"read", "groups"} <= result.keys() for result in results]
        if not (noted and all(noted)):
            return {"topology": {"axes": axes, "groups": config.groups()}}
        read = [{tuple(one) for one in result["read"]} for result in results]
        return {
            "topology": {"axes": axes, "groups": _groups(results)},
            "data": {
                "name": "text",
                "samples": [len({sample for sample, _ in of_rank}) for of_rank in read],
                "tokens": [len(of_rank) for of_rank in read],
            },
            "batch": {
                "counted_samples": len({sample for of_rank in read for sample, _ in of_rank}),
                "global_tokens": len(set().union(*read)),
            },
        }

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what a step consumed, who talked to whom, and whether it was the step of one process.

        global_batch                  D * B * K;  wrong_global_batch   world * B * K
        distinct_samples              different samples that the ranks really read in a step, counted
        samples_read                  how many each rank read; distinct_tokens and tokens_read likewise
        tokens_per_step               D * B * K * T, cp or not
        groups                        {axis: lists of ranks}, as the process groups themselves say
        wire_bytes_by_group           {axis: bytes each rank sent in the last step}
        wire_bytes_by_group_predicted the same by formula, with gloo's headers, framing_bytes_by_group_predicted
        wire_bytes                    over all axes
        max_difference_from_single    of gradients (first step) and parameters (last), from one process in float64 on
                                      the whole batch
        as_one_process                whether the first update is, to rounding: many steps may amplify that. AdamW in
                                      low precision is judged by the gradient: it divides by its size, and makes as
                                      much of a rounding error
        parameters                    N;  parameters_per_rank what each rank computes with
        bytes_per_rank                {parameters, gradients, optimizer} of each rank, after backward and before the
                                      step; bytes_per_rank_predicted from what it computes with, over `shard`
        losses                        of the global batch, step by step
        spoiled                       what the wrong product would do, see theory.batch
        seconds                       {median, min, max} of a step over ranks and steps but the first
        """
        config, world = Config(**run.config), run.environment.world_size
        results = run.results
        if results[0] is None:  # torch's classes keep no books: their run is compared step by step
            return {}
        B, K, single = config.micro_batch, config.accumulation_steps, batch.global_batch
        wrong = single(world, micro_batch=B, accumulation_steps=K)
        seconds = [one for result in results for one in result["seconds"][1:]]
        median = statistics.median(seconds)
        sent = {axis: [result["sent"][axis] for result in results] for axis in results[0]["sent"]}
        predicted = [predict(config, result) for result in results]
        counted = run.environment.wire == COUNTED
        framing = {axis: [0 if counted else one[axis].framing for one in predicted] for axis in sent}
        gradient, first, last = (max(of_ranks) for of_ranks in zip(*(r["differences"] for r in results), strict=True))
        coarse = config.optimizer == "adamw" and config.dtype != "float64"
        every = [result["losses"] for result in results]
        losses = [[loss for loss in step if loss is not None] for step in zip(*every, strict=True)]
        read = [{tuple(one) for one in result["read"]} for result in results]
        return {
            "global_batch": config.samples,
            "wrong_global_batch": wrong,
            "distinct_samples": len({sample for of_rank in read for sample, _ in of_rank}),
            "samples_read": [len({sample for sample, _ in of_rank}) for of_rank in read],
            "tokens_per_step": batch.tokens(config.dp, micro_batch=B, accumulation_steps=K, length=LENGTH).step,
            "distinct_tokens": len(set().union(*read)),
            "tokens_read": [len(of_rank) for of_rank in read],
            "groups": _groups(results),
            "wire_bytes_by_group": sent,
            "wire_bytes_by_group_predicted": {
                axis: [one[axis].payload + more for one, more in zip(predicted, framing[axis], strict=True)]
                for axis in sent
            },
            "framing_bytes_by_group_predicted": framing,
            "wire_bytes": [sum(of_rank) for of_rank in zip(*sent.values(), strict=True)],
            "max_difference_from_single": max(gradient, last),
            "as_one_process": (gradient if coarse else max(gradient, first)) <= TOLERANCE[config.dtype],
            "parameters": results[0]["whole_parameters"],
            "parameters_per_rank": [result["parameters"] for result in results],
            "bytes_per_rank": [result["bytes"] for result in results],
            "bytes_per_rank_predicted": [held(config, result["parameters"]) for result in results],
            "losses": [statistics.fmean(step) for step in losses],
            "spoiled": batch.spoiled(
                config.samples,
                wrong,
                lr=config.lr,
                length=LENGTH,
                token_budget=config.token_budget,
                seconds=median,
            ),
            "seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        }


def _groups(results: list[dict]) -> dict[str, list[list[int]]]:
    """Return {axis: lists of ranks}, as the process groups themselves say."""
    return {axis: sorted(map(list, {tuple(r["groups"][axis]) for r in results})) for axis in results[0]["groups"]}


def held(config: Config, parameters: int) -> dict[str, int]:
    """Return the bytes of model state of a rank that computes with so many parameters: all of them, or its shard."""
    each = memory.bytes_a_parameter(mixed_precision=False, optimizer=config.optimizer, dtype=config.dtype)
    state = memory.model_state([parameters], config.shard, stage=3, each=each)
    return dict(zip(KINDS, state[: len(KINDS)], strict=True))


def predict(config: Config, result: dict) -> dict[str, traffic.Sent]:
    """Return what a rank sends in a step along each axis, from where it stands and how many parameters it computes
    with: gradients once, activations for each micro-batch.
    """
    item, n, at, K = BYTES[config.dtype], result["parameters"], result["at"], config.accumulation_steps
    activations = config.micro_batch * LENGTH // config.cp * config.width
    header = traffic.HEADER

    def all_reduce(axis: str, elements: int, calls: int = 1) -> traffic.Sent:
        one = traffic.gloo_all_reduce(elements, getattr(config, axis), element_size=item)[at[axis]]
        return traffic.Sent(calls * one.payload, calls * one.framing)

    sends = K * ((at["pp"] < config.pp - 1) + (at["pp"] > 0))  # to the next stage, and back; and as many come
    sent = {
        "pp": traffic.Sent(sends * activations * item, sends * 3 * header),
        "tp": all_reduce("tp", activations, 2 * K * config.layers // config.pp),  # f and g, once a layer each
        "cp": all_reduce("cp", n),
        "dp": all_reduce("dp", n),
    }
    if config.shard > 1:
        s, whole = config.shard, -(-n // config.shard) * config.shard
        # the gather comes in two messages a rank, the exchange of gradients in one, of three headers each
        sent["shard"] = traffic.Sent(2 * traffic.all_gather_bytes(whole * item, s), (2 + 1) * (s - 1) * 3 * header)
        replicas = traffic.gloo_all_reduce(whole // s, config.dp // s, element_size=item)
        sent["replicate"], sent["dp"] = replicas[at["replicate"]], traffic.Sent(0, 0)
    return {axis: sent.get(axis, traffic.Sent(0, 0)) for axis in result["sent"]}
