"""Who needs to hold what? Memory against traffic, ZeRO stages 0 to 3, by hand and by torch's own classes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, WrongValue, choice, flag, number, whole
from dpviz.records import COUNTED
from dpviz.theory import memory, traffic

KINDS = memory.State._fields


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    stage: int = whole(2, low=0, high=3, help="0: nothing divided, 1: optimizer, 2: gradients too, 3: parameters too")
    implementation: str = choice(
        "by_hand", ("by_hand", "torch"), help="dpviz.parallel.zero, or DDP, ZeroRedundancyOptimizer and FSDP2"
    )
    reduce_scatter: str = choice("ring", ("ring", "gloo"), help="a ring by hand, or gloo's, which is an all-reduce")
    accumulation_steps: int = whole(1, low=1, high=64, help="micro-batches a rank and step, K")
    micro_batch: int = whole(4, low=1, high=256, help="samples in a micro-batch, B")
    mixed_precision: bool = flag(False, help="bfloat16 parameters and gradients, float32 master weights and moments")
    max_norm: float = number(0.0, low=0.0, high=1e6, help="clip by the norm of the whole gradient; 0 does not clip")
    recompute: bool = flag(False, help="keep only each layer's input for backward, and compute the rest again")
    model: str = choice("deep", ("deep", "mlp", "transformer"), help="residual layers, a small mlp, or a transformer")
    layers: int = whole(4, low=1, high=64, help="layers of the deep model")
    width: int = whole(64, low=1, high=2048, help="their width")
    data: str = choice("digits", ("digits", "text"), help="images or text")
    optimizer: str = choice("adamw", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    lr: float = number(0.01, low=0.0, high=100.0, help="learning rate")
    steps: int = whole(5, low=1, high=50, help="optimizer updates")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixed_precision and self.dtype != "float32":
            raise WrongValue(
                f"dtype is {self.dtype}, but mixed_precision means bfloat16 and float32. Leave dtype at float32."
            )
        if self.mixed_precision and self.implementation == "torch" and self.stage < 2:
            raise WrongValue(
                f"torch has no master weights for stage {self.stage} (DDP keeps the parameters' own dtype). "
                "Set mixed_precision false, or implementation by_hand, or stage 2 or 3."
            )

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what each rank held and sent, and whether it trained as stage 0 does.

        bytes_per_rank            {parameters, gradients, optimizer, master} of each rank, the tensors' own sizes,
                                  after backward and before the step; counters of steps are left out
        bytes_predicted           the same by what is divided and how: units by hand, whole tensors by
                                  ZeroRedundancyOptimizer, rows of each parameter by FSDP2
        formula_bytes             the formula for N parameters; padding_bytes what padding adds, over all ranks. FSDP2
                                  frees all parameters after backward: stage 2 is then held as stage 3 is
        parameters                N;  payload_bytes P, the bytes of the gradients as they travel
        wire_bytes                what each rank sent in the last step; wire_bytes_predicted by the formula;
                                  framing_bytes_predicted the headers of gloo's messages beside it;
                                  wire_over_payload the mean over ranks without these headers, over P
        collectives               {name: calls} of a step; a reduce-scatter by the ring counts as one
        max_difference_from_stage_0      of the losses, over ranks and steps; max_difference_from_single: of their mean
                                  from the loss of one process on the whole batch, in float64
        peak_bytes                of all tensors of a rank within a step, by kind and moment in results' "memory"
        activation_bytes          what autograd keeps of one micro-batch for its backward
        seconds                   {median, min, max} of a step, over ranks and steps but the first;
                                  times_stage_0 the median over that of stage 0 in the same launch
        """
        config, k = Config(**run.config), run.environment.world_size
        results = run.results
        each = bytes_a_parameter(config)
        N = sum(results[0]["unit_sizes"])
        held = [result["bytes"] for result in results]
        frees_all = config.implementation == "torch" and config.stage == 2  # FSDP2 after backward, whatever is kept
        formula = memory.model_state(N, k, stage=3 if frees_all else config.stage, each=each)
        predicted = [dict(zip(KINDS, state, strict=True)) for state in predictions(config, results, k)]
        payload = N * (2 if config.mixed_precision else each.gradients)
        sent = [result["wire_bytes"] for result in results]
        framing = framing_bytes(config, results, k) if run.environment.wire != COUNTED else [0] * k
        single = results[0]["losses_of_single"]
        means = [statistics.fmean(losses) for losses in zip(*(r["losses"] for r in results), strict=True)]
        seconds, of_stage_0 = (
            [one for result in results for one in result[name][1:] or result[name]]
            for name in ("seconds", "seconds_of_stage_0")
        )
        return {
            "bytes_per_rank": held,
            "bytes_predicted": predicted,
            "formula_bytes": dict(zip(KINDS, formula, strict=True)),
            "padding_bytes": sum(sum(one.values()) for one in predicted) - k * formula.total,
            "model_state_bytes": [sum(one.values()) for one in held],
            "parameters": N,
            "payload_bytes": payload,
            "wire_bytes": sent,
            "wire_bytes_predicted": step_bytes(config, results, payload, k),
            "framing_bytes_predicted": framing,
            "wire_over_payload": (statistics.fmean(sent) - statistics.fmean(framing)) / payload,
            "max_difference_from_stage_0": max(
                abs(a - b) for r in results for a, b in zip(r["losses"], r["losses_of_stage_0"], strict=True)
            ),
            "max_difference_from_single": max(abs(a - b) for a, b in zip(means, single, strict=True)),
            "final_loss": means[-1],
            "peak_bytes": [result["memory"]["peak"] for result in results],
            "activation_bytes": [result["activation_bytes"] for result in results],
            "collectives": results[0]["collectives"],
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "times_stage_0": statistics.median(seconds) / statistics.median(of_stage_0),
        }


def bytes_a_parameter(config: Config) -> memory.State:
    """FSDP2's mixed precision keeps float32 parameters, gradients and moments: its bfloat16 lives for the moment."""
    by_hand = config.mixed_precision and config.implementation == "by_hand"
    return memory.bytes_a_parameter(mixed_precision=by_hand, optimizer=config.optimizer, dtype=config.dtype)


def predictions(config: Config, results: list[dict], k: int) -> list[memory.State]:
    """Return what each rank should hold: by hand each unit padded, by torch what the class really divides."""
    each, N = bytes_a_parameter(config), sum(results[0]["unit_sizes"])
    if config.implementation == "by_hand":
        padded = [-(-size // k) * k for size in results[0]["unit_sizes"]]  # whole tensors are padded as well
        return [memory.model_state(padded, k, stage=config.stage, each=each)] * k
    if config.stage < 2:
        updated = [sum(result["updated"]) for result in results]
        return [memory.State(each.parameters * N, each.gradients * N, each.optimizer * n, 0) for n in updated]
    return [rows(results[0]["shapes"], rank, k, each) for rank in range(k)]


def rows(shapes: list[list[int]], rank: int, k: int, each: memory.State) -> memory.State:
    """Return what FSDP2 holds of parameters of these shapes: it pads parameters and gradients to equal parts; the
    optimizer sees only what is there.
    """
    padded, mine = map(sum, zip(*parts(shapes, rank, k), strict=True))
    return memory.State(each.parameters * padded, each.gradients * padded, each.optimizer * mine, 0)


def parts(shapes: list[list[int]], rank: int, k: int) -> list[tuple[int, int]]:
    """Return, for each parameter, the elements of ceil(rows / k) rows, and of those of them that this rank gets."""
    each = [(-(-height // k), height, math.prod(rest)) for height, *rest in shapes]
    return [(part * size, max(0, min(part, height - rank * part)) * size) for part, height, size in each]


def step_bytes(config: Config, results: list[dict], payload: int, k: int) -> list[int]:
    """Return what each rank sends in a step: the formula of the stage or, by torch, of what the class does."""
    K, item = config.accumulation_steps, payload // sum(results[0]["unit_sizes"])
    if config.implementation == "torch" and config.stage == 1:  # all-reduces, then broadcasts what it has updated
        sent = [traffic.broadcast_bytes(item * sum(one["updated"]), k, root=r) for r, one in enumerate(results)]
        return [traffic.zero_bytes(payload, k, stage=0) + sum(of_rank) for of_rank in zip(*sent, strict=True)]
    if config.implementation == "torch" and config.stage > 1:  # FSDP2 pads the rows of each parameter
        payload = item * k * sum(part for part, _ in parts(results[0]["shapes"], 0, k))
    total = traffic.zero_bytes(payload, k, stage=config.stage, accumulation_steps=K)
    if config.reduce_scatter == "gloo" and config.stage > 0:  # which sends twice as much
        total += (1 if config.stage == 1 else K) * traffic.reduce_scatter_bytes(payload, k)
    return [total] * k


def framing_bytes(config: Config, results: list[dict], k: int) -> list[int]:
    """Return the headers that each rank sends in a step, from the number of its collectives."""
    calls = results[0]["collectives"]
    header = (k - 1) * 3 * traffic.HEADER  # of one message to each of the other ranks
    gathers = calls.get("all_gather", 0) * 2 * header  # gloo cuts what a rank owns in two
    scatters = calls.get("reduce_scatter", 0) * (header if config.reduce_scatter == "ring" else 4 * header)
    sent = [gathers + scatters + traffic.framing_bytes(k, calls.get("all_reduce", 0))] * k
    if config.implementation == "torch" and config.stage == 1:  # broadcasts, one a tensor
        trees = [traffic.broadcast_framing_bytes(k, root=rank) for rank in range(k)]
        for root, result in enumerate(results):
            sent = [a + b * len(result["updated"]) for a, b in zip(sent, trees[root], strict=True)]
    return sent
