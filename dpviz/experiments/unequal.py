"""What if the ranks do not hold equally many samples, or tokens? Several rules under one all-reduce, beside one
process.

    python -m dpviz run unequal --tokens 10,30/60,100 --loss-sums 30,60/60,100 --json

Built in lesson 02.
"""

from __future__ import annotations

import math

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dpviz import data, models
from dpviz.experiments.equivalence import DTYPES, flat
from dpviz.parallel.ddp import all_reduce_gradients
from dpviz.questions.unequal import Config

__all__ = ["Config", "experiment"]


def experiment(config):
    """Try each rule on this rank's micro-batches.

    Returns {"losses": {rule: mean over ranks}, "local" and "gradients": {rule: vector of float64, before and after the
    all-reduce}, "weights": {rule: what a token of each micro-batch weighs}, "counts": tokens in the loss, a micro-batch
    each, "join_gradient_norms": a list}, and on rank 0 "reference_loss" and "reference_gradient".
    """
    rank, k = dist.get_rank(), dist.get_world_size()
    model = build(config)
    losses, local, gradients, weights = {}, {}, {}, {}
    for rule in RULES:
        name = rule.__name__
        model.zero_grad()
        parts = token_losses(config, model, rank)  # a vector of token losses for each micro-batch
        loss = rule(config, parts)
        loss.backward()
        local[name] = flat(p.grad for p in model.parameters())
        all_reduce_gradients(model)  # what DDP does: sum over ranks, divided by k
        gradients[name] = flat(p.grad for p in model.parameters())
        weights[name] = [weight(part) / k for part in parts]
        dist.all_reduce(value := loss.detach().clone())
        losses[name] = value.item() / k
    return {"losses": losses, "local": local, "gradients": gradients, "weights": weights} | {
        "counts": [len(part) for part in parts],
        "join_gradient_norms": with_join(config, rank) if config.join != "none" else [],
        **(one_process(config) if rank == 0 else {}),
    }


def mean_of_micro_means(config, parts):
    return torch.stack([part.mean() for part in parts]).mean()


def mean_of_rank_means(config, parts):
    return torch.cat(parts).mean()


def weighted(config, parts):
    mine = units(config, parts)
    total = torch.tensor(len(mine))
    dist.all_reduce(total)  # N: everyone must know how many there are in all
    return mine.sum() * dist.get_world_size() / total  # the k undoes DDP's division


def all_reduced_loss(config, parts):
    """A popular mistake: the loss is summed over ranks before backward, but autograd sees only this rank's part of
    it.
    """
    mine = units(config, parts)
    loss, total = mine.sum(), torch.tensor(len(mine))
    dist.all_reduce(loss.data)
    dist.all_reduce(total)
    return loss / total


RULES = (mean_of_micro_means, mean_of_rank_means, weighted, all_reduced_loss)


def weight(part):
    """Return how much the rule's loss grows with the loss of one token of `part`, as autograd found; NaN for none."""
    if len(part) == 0:
        return math.nan
    return 0.0 if part.grad is None else float(part.grad[0])


def units(config, parts):
    """Return what is to count the same, as one vector: the losses of all tokens, or the mean of each sequence."""
    if config.objective == "token":
        return torch.cat(parts)
    return torch.stack([part.mean() for part in parts if len(part)] or [torch.cat(parts).sum()])


def one_process(config):
    """Return the reference: the mean over all that counts, of every rank, and its gradient."""
    model = build(config)
    parts = [part for rank in range(len(config.tokens)) for part in token_losses(config, model, rank)]
    loss = units(config, parts).mean()
    loss.backward()
    return {"reference_loss": loss.item(), "reference_gradient": flat(p.grad for p in model.parameters())}


def with_join(config, rank):
    """Return the length of the gradient after each of this rank's batches, under torch's Join: ranks may have
    unequally many.
    """
    model, norms = build(config), []
    ddp = DistributedDataParallel(model)
    with Join([ddp], divide_by_initial_world_size=config.join == "initial"):
        for number in range(len(config.tokens[rank])):
            ddp.zero_grad()
            token_losses_of(config, ddp, rank, number).mean().backward()
            norms.append(float(numpy.linalg.norm(flat(p.grad for p in model.parameters()))))
    return norms


def build(config):
    """Return the model, equal on every rank; with loss_sums one weight w = 1."""
    name, dataset = (config.model, "text") if config.loss_sums is None else ("weight", "count")
    return models.build(name, data.load(dataset), seed=config.seed, dtype=DTYPES[config.dtype])


def token_losses(config, model, rank):
    """Return the losses of the tokens that enter the loss: a vector for each micro-batch of the rank.

    Each vector keeps its gradient, which is what a rule lets its tokens weigh.
    """
    parts = [token_losses_of(config, model, rank, number) for number in range(len(config.tokens[rank]))]
    for part in parts:
        part.retain_grad()
    return parts


def token_losses_of(config, model, rank, number):
    count = config.tokens[rank][number]
    if config.loss_sums is not None:
        return model(torch.full((count,), config.loss_sums[rank][number] / max(count, 1), dtype=torch.float64))
    x, y = data.sequence(sum(map(len, config.tokens[:rank])) + number, count)
    padding = -count % data.WINDOW
    logits = model(F.pad(x, (0, padding)).view(-1, data.WINDOW)).flatten(0, 1)[:count]
    losses = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")
    return losses[count // 2 :] if config.mask == "response_only" else losses
