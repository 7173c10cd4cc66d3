# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 1. Average the gradients
#
# You build data parallelism by hand: k ranks, each with its part of the batch, must make the step that one process
# would make on all of it. Where ranks matter, checks run real ones. **Core: exercises 1 to 5, 45 minutes.** Before it:
# [lesson 01](../../lessons/01_gradient_equivalence.ipynb).
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import torch
import torch.distributed as dist
from torch.nn import functional as F

import dpviz as dp
from dpviz import data, models
from dpviz.labs import expect

X, Y = data.samples(data.load("digits"), 0, 24)  # a global batch of 24 images


def new_model(seed=0):
    return models.build("mlp", data.load("digits"), seed=seed, dtype=torch.float64)


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def of_one_process(reduction="mean"):
    """The gradient of all 24 images: what the checks compare with."""
    model = new_model()
    models.loss(model, X, Y, reduction).backward()
    return gradients(model)


# %% [markdown]
# ## Exercise 1: my part
#
# Rank `rank` of `k` gets its part of a batch: samples `rank`, `rank + k`, `rank + 2k`, ... The number of samples is a
# multiple of k.


# %% tags=["exercise", "ex1"]
def my_part(batch, rank, k):
    """Return this rank's samples of `batch`, a tensor of shape (n, ...): shape (n / k, ...)."""
    ### BEGIN SOLUTION
    return batch[rank::k]
    ### END SOLUTION


# %% tags=["check", "ex1"]
parts = [my_part(torch.arange(12), rank, 4).tolist() for rank in range(4)]
expect.equal("the samples that the four ranks hold together", sorted(sum(parts, [])), list(range(12)))
expect.equal("the samples of rank 1 of 4", parts[1], [1, 5, 9])
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: average
#
# After backward, each rank has the gradient of the *mean* loss over its own part. Make every rank hold the gradient of
# the whole batch. Some parameters may have no gradient (`p.grad is None`): leave them alone.
#
# <details><summary>Hint</summary>
#
# All ranks hold equally many samples. What is the mean over the batch, written with the k means over the parts?
#
# </details>


# %% tags=["exercise", "ex2"]
def average_gradients(model):
    """Replace each parameter's gradient by its mean over all ranks."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% tags=["check", "ex2"]
def gradient_on_ranks(config):
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    models.loss(model, X[rank::k], Y[rank::k]).backward()
    average_gradients(model)
    return gradients(model)


for k in (2, 3):
    for rank, found in enumerate(dp.launch(gradient_on_ranks, world_size=k, timeout=10).results):
        expect.close(f"a gradient on rank {rank} of {k}", found, of_one_process(), rtol=1e-9, atol=1e-12)
print("exercise 2: right")


# %% tags=["check", "ex2", "hidden"]
def with_a_frozen_layer(config):
    model = new_model()
    for parameter in model.hidden.parameters():
        parameter.requires_grad_(False)
    models.loss(model, X[dist.get_rank() :: 2], Y[dist.get_rank() :: 2]).backward()
    average_gradients(model)
    return gradients(model), all(p.grad is None for p in model.hidden.parameters())


results = dp.launch(with_a_frozen_layer, world_size=2, timeout=10).results
expect.equal("whether frozen parameters still have no gradient", [none for _, none in results], [True, True])
expect.close("a gradient, with a frozen layer", results[0][0], of_one_process()[-650:], rtol=1e-9, atol=1e-12)
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: the same start
#
# Each rank has built its model from another seed. Before training all must hold the parameters of rank 0.


# %% tags=["exercise", "ex3"]
def broadcast_parameters(model):
    """Give every rank rank 0's parameters, in place."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    ### END SOLUTION


# %% tags=["check", "ex3"]
def parameters_on_ranks(config):
    model = new_model(seed=dist.get_rank())
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    broadcast_parameters(model)
    return before, torch.cat([p.detach().flatten() for p in model.parameters()])


results = dp.launch(parameters_on_ranks, world_size=3, timeout=10).results
assert not torch.equal(results[0][0], results[1][0]), "the check must start from models that differ"
for rank, (_, after) in enumerate(results):
    expect.close(f"a parameter on rank {rank}, against rank 0's", after, results[0][0], rtol=0)
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: divide where?
#
# A colleague's loss is a *sum* over the rank's samples, and the ranks hold different numbers of them. Afterwards the
# gradients are averaged over ranks as in exercise 2 (you cannot change that). Turn the rank's sum into the loss to call
# backward on, so that the averaged gradient is that of the mean over *all* samples.
#
# <details><summary>Hint</summary>
#
# Averaging divides by k, and the mean divides by the number of all samples.
#
# </details>


# %% tags=["exercise", "ex4"]
def loss_of_mine(local_sum, samples_of_all, k):
    """Return the loss to call backward on; `samples_of_all` is the number of samples of all ranks together."""
    ### BEGIN SOLUTION
    return local_sum * k / samples_of_all
    ### END SOLUTION


# %% tags=["check", "ex4"]
def gradient_of_sums(sizes):
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    loss_of_mine(models.loss(model, X[mine], Y[mine], "sum"), sum(sizes), k).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= k
    return gradients(model)


for sizes in ([12, 12], [4, 20], [1, 3, 20]):
    found = dp.launch(gradient_of_sums, sizes, world_size=len(sizes), timeout=10).results[0]
    expect.close(f"a gradient, ranks with {sizes} samples", found, of_one_process(), rtol=1e-9, atol=1e-12)
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: five steps
#
# Now the whole loop, one process's trajectory on k ranks: start alike, compute on your part, average, step. Use what
# you like of torch. `model` may differ from rank to rank when it is handed to you. Return the model.


# %% tags=["exercise", "ex5"]
def train(model, x, y, *, steps, lr):
    """SGD with momentum 0.9 on the mean cross entropy of the global batch (x, y), `steps` times."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::k]), y[rank::k]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= k
        optimizer.step()
    return model
    ### END SOLUTION


# %% tags=["check", "ex5", "points-2"]
def trained(config):
    model = train(new_model(seed=dist.get_rank()), X, Y, steps=5, lr=0.5)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained_alone(steps=5):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


run = dp.launch(trained, world_size=4, timeout=10)
for rank, found in enumerate(run.results):
    expect.equal(f"whether rank {rank} ends with rank 0's parameters", torch.equal(found, run.results[0]), True)
expect.close("a parameter after 5 steps", run.results[0], trained_alone(), rtol=1e-7, atol=1e-10)
print("exercise 5: right")

# %% [markdown]
# ## Extension, exercise 6: one message
#
# An all-reduce for each parameter is four messages here, and hundreds in a real model. Average all gradients with *one*
# all-reduce.


# %% tags=["exercise", "ex6"]
def average_flat(model):
    """As average_gradients, with a single all-reduce."""
    ### BEGIN SOLUTION
    with_gradient = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in with_gradient])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(with_gradient, flat.split([p.numel() for p in with_gradient]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))
    ### END SOLUTION


# %% tags=["check", "ex6"]
def flat_on_ranks(config):
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    models.loss(model, X[rank::k], Y[rank::k]).backward()
    average_flat(model)
    return gradients(model)


run = dp.launch(flat_on_ranks, world_size=3, timeout=10)
expect.close("a gradient on rank 1", run.results[1], of_one_process(), rtol=1e-9, atol=1e-12)
calls = [entry.name for entry in run.collectives[1]]
expect.equal("the collectives that rank 1 called", calls, ["all_reduce"])
print("exercise 6: right")

# %% [markdown]
# ## Extension, exercise 7: are we equal?
#
# Write a check that ranks can make in every step: `True` on every rank if all hold the same parameters, else `False` on
# every rank. Each rank may send at most 64 bytes of its own: comparing whole models is not an option.


# %% tags=["exercise", "ex7"]
def all_equal(model):
    """Return on every rank whether all ranks hold the same parameters, by at most 64 bytes of payload."""
    ### BEGIN SOLUTION
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    weights = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    number = flat @ weights
    both = torch.stack([number, -number])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return bool(both[0] == -both[1])
    ### END SOLUTION


# %% tags=["check", "ex7"]
def compared(config):
    model = new_model()
    same = all_equal(model)
    with torch.no_grad():
        model.hidden.weight[3, 5] += 1e-3 * (dist.get_rank() == 1)
    return same, all_equal(model)


run = dp.launch(compared, world_size=3, timeout=10)
expect.equal("what each rank says of equal models, and of models that differ", run.results, [(True, False)] * 3)
payload = max(entry.payload for entry in run.collectives[0])
expect.at_most("the largest payload of a collective", payload, 64, unit="bytes")
print("exercise 7: right")
