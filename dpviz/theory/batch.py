"""How many samples and tokens an optimizer step consumes on a mesh of ranks, and what a wrong answer spoils.

Terms, as in the course texts: K accumulation steps, B samples in a micro-batch, D (here `dp`) the data-parallel size.
The mesh has world = D * TP * PP * CP ranks; expert parallelism lies inside D, or is a factor of its own in a layout
that is rarely used. Only D brings samples of its own: all other axes work together on the same ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple


def world_size(dp, *, tp=1, pp=1, cp=1, separate_ep=1):
    """D * TP * PP * CP ranks, times EP only where experts have an axis of their own."""
    return math.prod(_whole("an axis", size) for size in (dp, tp, pp, cp, separate_ep))


def data_parallel_size(world, *, tp=1, pp=1, cp=1):
    """D = world / (TP * PP * CP). EP is no factor: experts are spread over ranks that are data-parallel to each other.

    Source: Megatron-LM, megatron/core/parallel_state.py. Raises ValueError where the axes do not divide the world.
    """
    model = world_size(1, tp=tp, pp=pp, cp=cp)
    if _whole("world", world) % model:
        raise ValueError(
            f"world is {world}, but TP * PP * CP = {model} must divide it. Give a multiple of {model}, or smaller axes."
        )
    return world // model


def global_batch(dp, *, micro_batch, accumulation_steps=1):
    """D * B * K samples a step. Hand in the world size for D to get the wrong product.

    Source: the first course text, section 4. 4 * 2 * 8 = 64 on a mesh of 16 ranks, of which the wrong product makes
    256.
    """
    return math.prod(_whole("a factor", one) for one in (dp, micro_batch, accumulation_steps))


def accumulation_steps(samples, *, dp, micro_batch):
    """K = samples / (D * B), rounded up. A global batch of 256 with 4 ranks and B = 2 needs 32."""
    return -(-_whole("samples", samples) // global_batch(dp, micro_batch=micro_batch))


class Tokens(NamedTuple):
    """Tokens of one optimizer step: of all ranks together, and of one rank."""

    step: int
    rank: int


def tokens(dp, *, micro_batch, length, accumulation_steps=1, cp=1):
    """D * B * K * T tokens a step, T being the `length` of a sample; a rank sees B * K * T / CP of them.

    Context parallelism cuts a sequence, it does not add any. Raises ValueError where CP does not divide T.
    """
    if _whole("length", length) % _whole("cp", cp):
        raise ValueError(f"length is {length}, but cp = {cp} must divide it. Give a multiple of {cp}, or a smaller cp.")
    samples = global_batch(dp, micro_batch=micro_batch, accumulation_steps=accumulation_steps)
    return Tokens(samples * length, samples // dp * length // cp)


def spoiled(right, wrong, *, lr, length, token_budget, seconds):
    """What a recipe does that takes the global batch for `wrong` samples instead of `right`: {name: {right, wrong}}.

    lr               the learning rate, `lr` being right: linear scaling keeps lr / batch, so it grows by the factor
    schedule_steps   steps planned until `token_budget` tokens are consumed, T = `length` tokens a sample
    tokens_consumed  by the end of that schedule; the wrong one ends when right/wrong of the budget is used
    samples_per_s    from `seconds`, those of a step
    """
    planned = {name: math.ceil(token_budget / (batch * length)) for name, batch in (("right", right), ("wrong", wrong))}
    return {
        "lr": {"right": lr, "wrong": lr * wrong / right},
        "schedule_steps": planned,
        "tokens_consumed": {name: steps * right * length for name, steps in planned.items()},
        "samples_per_s": {"right": right / seconds, "wrong": wrong / seconds},
    }


def _whole(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, but must be a whole number, 1 or more")
    return value
