"""Is a batch k times larger just k times faster?

A real training run with the global batch k * K * B, whose learning rate is scaled from `base_batch` by a rule. The
noise of the gradient is measured beside it, at the initial parameters, for batches of several sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import DTYPES, Question, WrongValue, choice, number, whole

SMOOTHED = 5  # updates whose mean loss is compared with the target


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    scaling: str = choice("none", ("none", "linear", "sqrt"), help="how the learning rate grows with the batch")
    warmup_fraction: float = number(0.0, low=0.0, high=1.0, help="part of the updates in which it rises from 0")
    base_lr: float = number(0.1, low=0.0, high=100.0, help="learning rate at the base batch")
    base_batch: int = whole(16, low=1, high=4096, help="global batch that base_lr was chosen for")
    steps: int = whole(60, low=1, high=2000, help="optimizer updates")
    accumulation_steps: int = whole(1, low=1, high=64, help="micro-batches a rank before one optimizer update, K")
    micro_batch: int = whole(4, low=1, high=256, help="samples in a micro-batch, B")
    target_loss: float = number(0.5, low=0.0, high=100.0, help="the loss that steps_to_target waits for")
    model: str = choice("mlp", ("mlp", "transformer"), help="the model")
    data: str = choice("digits", ("digits", "text"), help="what it learns")
    optimizer: str = choice("sgd", ("sgd", "adamw"), help="SGD, or AdamW without weight decay")
    # float64, since training with steps this large amplifies rounding: counts of updates would differ between machines
    dtype: str = choice("float64", DTYPES, help="type of parameters, gradients and what travels")

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return how the training went.

        losses             mean over the global batch, an update each; final_loss the mean of the last five
        steps_to_target    updates until the mean of five losses is at most the target; None where it never is
        samples_to_target  the same in samples
        diverged           whether the loss is not finite at the end, or above where it began
        gradient_noise     {batch: root mean square length of its gradient's deviation}, of real batches
        noise_exponent     slope of that in logarithms: -1/2 for independent samples
        noise_scale        trace of the covariance over the squared gradient, in samples: the batch beyond which
                           averaging more gains little. Source: McCandlish et al., "An empirical model of large-batch
                           training" (2018)
        """
        k, config = run.environment.world_size, run.config
        batch = k * config["accumulation_steps"] * config["micro_batch"]
        losses = [sum(of_ranks) / k for of_ranks in zip(*([s.loss for s in r] for r in run.records), strict=True)]
        smooth = [_mean(losses[max(0, i - SMOOTHED + 1) : i + 1]) for i in range(len(losses))]
        good = (number >= SMOOTHED and value <= config["target_loss"] for number, value in enumerate(smooth, start=1))
        reached = next((number for number, is_good in enumerate(good, start=1) if is_good), None)
        squares = {
            b: _mean([r["noise_squared"][i] for r in run.results]) for i, b in enumerate(run.results[0]["batches"])
        }
        noise = {b: math.sqrt(square) for b, square in squares.items()}
        return {
            "global_batch": batch,
            "lr": run.results[0]["lr"],
            "losses": losses,
            "final_loss": smooth[-1],
            "steps_to_target": reached,
            "samples_to_target": reached and reached * batch,
            "diverged": not math.isfinite(losses[-1]) or smooth[-1] > losses[0],
            "gradient_noise": noise,
            "noise_exponent": _slope(noise),
            "noise_scale": min(squares) * squares[min(squares)] / _mean([r["squared_gradient"] for r in run.results]),
        }

    def check_world_size(self, world_size: int) -> None:
        batch = world_size * self.accumulation_steps * self.micro_batch
        if batch > 32_768:
            raise WrongValue(f"the global batch would be {batch}, but it may be at most 32,768. Lower k, K or B.")


def lr_at(config, step, global_batch):
    """Return the learning rate of an update: base_lr times the rule's factor, in a linear warm-up at first.

    Source: Goyal et al., "Accurate, large minibatch SGD" (2017) for linear scaling with warm-up: lr / batch stays the
    same.
    """
    ratio = global_batch / config.base_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.scaling]
    warmup = round(config.warmup_fraction * config.steps)
    return config.base_lr * factor * (min(1.0, (step + 1) / warmup) if warmup else 1.0)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _slope(noise: dict[int, float]) -> float:
    """Return the least-squares slope of log noise over log batch."""
    x, y = [math.log(b) for b in noise], [math.log(max(n, 1e-300)) for n in noise.values()]
    middle = _mean(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
