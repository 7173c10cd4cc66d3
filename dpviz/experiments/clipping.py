"""In which order may gradients be averaged, clipped and unscaled? torch's clip_grad_norm_ at five places.

    python -m dpviz run clipping --order clip_then_average --gradients 30,40/0.3,-0.4 --json

Built in lesson 06.
"""

from __future__ import annotations

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.parallel.ddp import all_reduce_gradients
from dpviz.questions.clipping import Config

__all__ = ["Config", "experiment"]

MICRO_BATCHES = 2


def experiment(config):
    """Return this rank's {"update": vector, "reference": vector, "local_norm": of its own gradient}, float64."""
    local = model_with_gradients(config)
    if config.order == "clip_each_shard" and config.gradients is not None:
        update, reference = shards_of_the_average(config)
    else:
        update, reference = ORDERS[config.order](config), average_then_clip(config)
    return {"update": update, "reference": reference, "local_norm": float(numpy.linalg.norm(gradient(local)))}


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
    model = model_with_gradients(config)
    all_reduce_gradients(model)
    shards = torch.tensor(gradient(model)).tensor_split(dist.get_world_size())
    return gathered(clipped(shards[dist.get_rank()], config.max_norm), [len(shard) for shard in shards])


ORDERS = {
    f.__name__: f
    for f in (average_then_clip, clip_then_average, clip_each_micro_batch, clip_before_unscale, clip_each_shard)
}


def shards_of_the_average(config):
    """The rows are shards of one averaged gradient: clip each by its own norm, and beside it the whole by the
    whole's.
    """
    lengths = [len(row) for row in config.gradients]
    mine = torch.tensor(config.gradients[dist.get_rank()], dtype=torch.float64)
    whole = torch.tensor(gathered(mine, lengths))
    return gathered(clipped(mine, config.max_norm), lengths), clipped(whole, config.max_norm).numpy()


def clipped(vector, max_norm):
    parameter = nn.Parameter(torch.zeros_like(vector))
    parameter.grad = vector.clone()
    clip_grad_norm_([parameter], max_norm)
    return parameter.grad


def gathered(shard, lengths):
    """Return the shards of all ranks end to end; they are padded to the longest, since a gather wants equal lengths."""
    padded = [torch.zeros(max(lengths), dtype=shard.dtype) for _ in lengths]
    dist.all_gather(padded, nn.functional.pad(shard, (0, max(lengths) - len(shard))))
    return torch.cat([part[:length] for part, length in zip(padded, lengths, strict=True)]).numpy()


def model_with_gradients(config, after_each=lambda model: None):
    """Return a model with this rank's own gradient, accumulated over its micro-batches; after_each is called after
    each.
    """
    rank = dist.get_rank()
    if config.gradients is not None:
        model = nn.ParameterList([nn.Parameter(torch.zeros(len(config.gradients[rank]), dtype=DTYPES[config.dtype]))])
        model[0].grad = torch.tensor(config.gradients[rank], dtype=DTYPES[config.dtype])
        after_each(model)
        return model
    digits = data.load("digits")
    model = models.build("mlp", digits, seed=config.seed, dtype=DTYPES[config.dtype])
    for number in range(MICRO_BATCHES):
        start = (rank * MICRO_BATCHES + number) * config.micro_batch
        x, y = data.samples(digits, start, start + config.micro_batch, config.seed)
        (models.loss(model, x, y) / MICRO_BATCHES).backward()
        after_each(model)
    return model


def gradient(model):
    return flat(p.grad for p in model.parameters())
