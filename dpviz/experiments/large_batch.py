"""Is a batch k times larger just k times faster? Real training, and the noise of real gradients.

    python -m dpviz run large_batch --scaling linear --micro-batch 64 --world-size 4 --json

Built in lesson 07.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat, micro_batches
from dpviz.parallel.ddp import all_reduce_gradients
from dpviz.questions.large_batch import Config, lr_at
from dpviz.records import Step

__all__ = ["Config", "experiment"]

NOISE_GRADIENTS = 64  # a rank takes so many gradients of NOISE_BATCH samples, and averages 1, 2, 4 and 8 of them
NOISE_BATCH = 4


def experiment(config):
    """Train `config.steps` updates. Yields a Step an update; returns this rank's gradient noise before the first."""
    rank, k = dist.get_rank(), dist.get_world_size()
    global_batch = k * config.accumulation_steps * config.micro_batch
    model, optimizer = build(config)
    noise = gradient_noise(config, rank)
    for step in range(config.steps):
        lr = lr_at(config, step, global_batch)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = 0.0
        for x, y in micro_batches(config, step, rank, k):
            part = models.loss(model, x, y) / config.accumulation_steps
            part.backward()
            loss += part.item()
        all_reduce_gradients(model)
        optimizer.step()
        yield Step(step=step, loss=loss, values={"lr": lr, "samples": (step + 1) * global_batch})
    return {**noise, "lr": lr}


def build(config):
    """Return (model, optimizer), equal on every rank for equal configs."""
    model = models.build(config.model, data.load(config.data), seed=config.seed, dtype=DTYPES[config.dtype])
    optimizers = {"sgd": torch.optim.SGD, "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.0)}
    return model, optimizers[config.optimizer](model.parameters(), lr=config.base_lr)


def gradient_noise(config, rank):
    """Measure how far gradients of b samples scatter round their mean, for b = 4, 8, 16 and 32, at the initial
    parameters.

    Returns {"batches": [b], "noise_squared": [unbiased sum over parameters of the variance], "squared_gradient": of the
    mean gradient, the part that is noise subtracted}.
    """
    (model, _), dataset, gradients = build(config), data.load(config.data), []
    for number in range(NOISE_GRADIENTS):
        start = (rank * NOISE_GRADIENTS + number) * NOISE_BATCH
        model.zero_grad()
        models.loss(model, *data.samples(dataset, start, start + NOISE_BATCH, config.seed)).backward()
        gradients.append(torch.from_numpy(flat(p.grad for p in model.parameters())))
    gradients = torch.stack(gradients)
    together = (1, 2, 4, 8)
    variances = [gradients.unflatten(0, (-1, n)).mean(1).var(0, unbiased=True).sum().item() for n in together]
    square = gradients.mean(0).square().sum().item() - variances[0] / NOISE_GRADIENTS
    return {
        "batches": [NOISE_BATCH * n for n in together],
        "noise_squared": variances,
        "squared_gradient": max(square, 1e-300),
    }
