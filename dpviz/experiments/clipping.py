"""In which order may gradients be averaged, clipped and unscaled? torch's clip_grad_norm_ at five places.

    python -m dpviz run clipping --order clip_then_average --gradients 30,40/0.3,-0.4 --json

Built in lesson 06.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.parallel.ddp import all_reduce_gradients
from dpviz.questions.clipping import Config

__all__ = ["Config", "clipped_update", "experiment"]

MICRO_BATCHES = 2


def average_then_clip(config):
    model = model_with_gradients(config)
    all_reduce_gradients(model)
    clip_grad_norm_(model.parameters(), config.max_norm)
    return gradient(model)


def clip_then_average(config):
    model = model_with_gradients(config)
    clip_grad_norm_(model.parameters(), config.max_norm)
    all_reduce_gradients(model)
    return gradient(model)


def clip_each_micro_batch(config):
    model = model_with_gradients(config, after_each=lambda model: clip_grad_norm_(model.parameters(), config.max_norm))
    all_reduce_gradients(model)
    return gradient(model)


def clip_before_unscale(config):
    model = model_with_gradients(config)
    for parameter in model.parameters():
        parameter.grad *= config.loss_scale  # what the backward of a scaled loss leaves
    all_reduce_gradients(model)
    clip_grad_norm_(model.parameters(), config.max_norm)
    for parameter in model.parameters():
        parameter.grad /= config.loss_scale
    return gradient(model)


def clip_each_shard(config):
    mine, lengths = shard_of_the_average(config)
    clip_grad_norm_([mine], config.max_norm)
    return gathered(mine.grad, lengths)


def clip_shards_together(config):
    mine, lengths = shard_of_the_average(config)
    square = mine.grad.square().sum()
    dist.all_reduce(square)  # one number: the squares of all shards add up to that of the whole
    clip_grads_with_norm_([mine], config.max_norm, square.sqrt())
    return gathered(mine.grad, lengths)


ORDERS = {
    order.__name__: order
    for order in (
        average_then_clip,
        clip_then_average,
        clip_each_micro_batch,
        clip_each_shard,
        clip_shards_together,
        clip_before_unscale,
    )
}


def clipped_update(config):
    """Return this rank's {"update": of the order asked for, "reference": average_then_clip's, "local": its own
    gradient}, each a vector of float64.
    """
    return {
        "update": ORDERS[config.order](config),
        "reference": ORDERS["average_then_clip"](config),
        "local": gradient(model_with_gradients(config)),
    }


experiment = clipped_update  # the name that the command line calls it by


def shard_of_the_average(config):
    """Return a parameter whose gradient is this rank's shard of the averaged gradient, and all shards' lengths."""
    model = model_with_gradients(config)
    all_reduce_gradients(model)
    whole = torch.tensor(gradient(model))
    if config.gradients is None:
        shards = whole.tensor_split(dist.get_world_size())
    else:
        shards = whole.split([len(row) for row in config.gradients])
    shard = shards[dist.get_rank()]
    mine = nn.Parameter(torch.zeros_like(shard))
    mine.grad = shard.clone()
    return mine, [len(shard) for shard in shards]


def gathered(shard, lengths):
    """Return the shards of all ranks end to end; they are padded to the longest, since a gather wants equal lengths."""
    padded = [torch.zeros(max(lengths), dtype=shard.dtype) for _ in lengths]
    dist.all_gather(padded, nn.functional.pad(shard, (0, max(lengths) - len(shard))))
    return torch.cat([part[:length] for part, length in zip(padded, lengths, strict=True)]).cpu().numpy()


def model_with_gradients(config, after_each=lambda model: None):
    """Return a model with this rank's own gradient, accumulated over its micro-batches; after_each is called after
    each.
    """
    if config.gradients is not None:
        model = given(config)
        after_each(model)
        return model
    digits = data.load("digits")
    model = models.build("mlp", digits, seed=config.seed, dtype=DTYPES[config.dtype])
    for number in range(MICRO_BATCHES):
        start = (dist.get_rank() * MICRO_BATCHES + number) * config.micro_batch
        x, y = data.samples(digits, start, start + config.micro_batch, config.seed)
        (models.loss(model, x, y) / MICRO_BATCHES).backward()
        after_each(model)
    return model


def given(config):
    """Return a model with this rank's row as its gradient. Rows that are shards of an average give it whole to every
    rank, so that averaging it changes nothing.
    """
    whole = [number for row in config.gradients for number in row]
    row = whole if config.rows_are_shards() else config.gradients[dist.get_rank()]
    model = nn.ParameterList([nn.Parameter(torch.zeros(len(row), dtype=DTYPES[config.dtype]))])
    model[0].grad = torch.tensor(row, dtype=DTYPES[config.dtype])
    return model


def gradient(model):
    return flat(p.grad for p in model.parameters())
