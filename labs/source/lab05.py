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
# # Lab 5. Clip, scale, skip
#
# Between backward and the next forward stand five small acts: average, unscale, clip, step or skip, move the schedule.
# Each is a line or two, and each wrong order trains quietly on. You write them one by one, then all in one function.
# Where ranks matter, checks run real ones and compare them with one process. **Core: exercises 1 to 7, 45 minutes.**
# Before it: [lesson 06](../../lessons/06_optimizer_semantics.ipynb).
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import math
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

import dpviz as dp
from dpviz import data, models
from dpviz.experiments import optimizer_state
from dpviz.experiments.optimizer_state import MAX_NORM, LossScaler
from dpviz.labs import expect


def new_model():
    return models.build("mlp", data.load("digits"), dtype=torch.float64)


def average_over_ranks(model):
    """What DDP does after backward: sum the gradients over ranks, divide by k."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def with_gradient(numbers):
    """A model of one parameter for each number, which is its gradient (None: it has none)."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(1).double()) for _ in numbers)
    for parameter, number in zip(model, numbers, strict=True):
        parameter.grad = None if number is None else torch.tensor([number]).double()
    return model


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradient(model):
    return flat(p.grad for p in model.parameters() if p.grad is not None)


STEPS, BATCH = 8, 12  # in exercises 7 and 8: updates, and images in each


def as_lesson_06(model, optimizer, scheduler, scaler, *, max_norm=MAX_NORM):
    """What exercises 7 and 8 are compared with: the update of lesson 06, in one process."""
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    no_fault = optimizer_state.Fault(optimizer_state.Config())
    optimizer_state.update(SimpleNamespace(**parts, updates=0), 0, no_fault)


# %% [markdown]
# ## Exercise 1: clip
#
# A gradient longer than `max_norm` is shortened to that length and keeps its direction. A shorter one stays as it is.


# %% tags=["exercise", "ex1"]
def clip(vector, max_norm):
    """Return the clipped vector, of shape (n,); the one given stays as it is."""
    ### BEGIN SOLUTION
    norm = vector.norm()
    return vector * (max_norm / norm) if norm > max_norm else vector
    ### END SOLUTION


# %% tags=["check", "ex1"]
long, short = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.2])
expect.close("(3, 4) clipped to length 1", clip(long, 1.0), [0.6, 0.8], rtol=1e-4)
expect.close("(0, 0.2) clipped to length 1", clip(short, 1.0), [0, 0.2])
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden"]
given = torch.tensor([30.0, 0.0, 40.0])
expect.close("(30, 0, 40) clipped to length 5", clip(given, 5.0), [3, 0, 4], rtol=1e-4)
expect.close("the vector given, afterwards", given, [30, 0, 40])
expect.close("(0, 0) clipped to length 1", clip(torch.zeros(2), 1.0), [0, 0])
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: k ranks
#
# Each rank has the gradient of its own part of the batch. Leave on all of them the gradient that one process would step
# with: that of the whole batch, clipped. `average_over_ranks` above and torch's `nn.utils.clip_grad_norm_` are yours to
# use.
#
# Two ranks have (30, 40) and (0.3, -0.4), and `max_norm` is 1. The result has length 1.


# %% tags=["exercise", "ex2"]
def average_and_clip(model, max_norm):
    """Replace this rank's gradients; return the length before clipping, a float."""
    ### BEGIN SOLUTION
    average_over_ranks(model)
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
    ### END SOLUTION


# %% tags=["check", "ex2"]
def clipped_on_ranks(gradients):
    model = with_gradient(gradients[dist.get_rank()])
    length = average_and_clip(model, 1.0)
    return length, gradient(model)


for gradients in ([(30, 40), (0.3, -0.4)], [(3, 0), (-3, 0.4)]):
    means = [sum(column) / 2 for column in zip(*gradients, strict=True)]
    due = [number / max(1, math.hypot(*means)) for number in means]
    run = dp.launch(clipped_on_ranks, gradients, world_size=2, timeout=5)
    for rank, (length, found) in enumerate(run.results):
        what = f"of {gradients[0]} and {gradients[1]}, on rank {rank}"
        expect.close(f"the gradient {what}", found, due, rtol=1e-4)
        expect.close(f"the length returned {what}", length, math.hypot(*means), rtol=1e-4)
print("exercise 2: right")

# %% tags=["check", "ex2", "hidden"]
frozen = [(None, 0, 3), (None, 9, 0), (None, 0, 9)]
for length, found in dp.launch(clipped_on_ranks, frozen, world_size=3, timeout=5).results:
    expect.close("the gradient on 3 ranks, one parameter frozen", found, [0.6, 0.8], rtol=1e-4)
    expect.close("the length returned on 3 ranks", length, 5.0, rtol=1e-4)
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: shards
#
# Under ZeRO and FSDP a rank holds only a *shard* of the averaged gradient: rank 0 the first entries, rank 1 the next,
# and so on. Clip the whole by its own length. You may send one message of at most 8 bytes.
#
# <details><summary>Hint</summary>
#
# The length of the whole cannot be added up from the lengths of the shards. From what can it?
#
# </details>


# %% tags=["exercise", "ex3"]
def clip_shard(shard, max_norm):
    """Return this rank's part of the clipped gradient, of shape (n,); n may differ by rank."""
    ### BEGIN SOLUTION
    square = shard.square().sum()
    dist.all_reduce(square)
    return shard * (max_norm / square.sqrt()).clamp(max=1.0)
    ### END SOLUTION


# %% tags=["check", "ex3"]
def clipped_shards(shards):
    return clip_shard(torch.tensor(shards[dist.get_rank()]).double(), 1.0)


run = dp.launch(clipped_shards, [[3.0], [4.0]], world_size=2, timeout=5)
found = torch.cat(run.results)
expect.close("the gradient (3, 4) in two shards, clipped to 1", found, [0.6, 0.8], rtol=1e-4)
calls = [entry.payload for entry in run.collectives[0]]
expect.equal("messages sent by rank 0", len(calls), 1)
expect.at_most("its payload", calls[0], 8, unit="bytes")
found = dp.launch(clipped_shards, [[0.3], [0.4]], world_size=2, timeout=5).results
expect.close("the gradient (0.3, 0.4), which is short", torch.cat(found), [0.3, 0.4], rtol=1e-4)
print("exercise 3: right")

# %% tags=["check", "ex3", "hidden"]
found = dp.launch(clipped_shards, [[2.0, 4.0], [], [4.0]], world_size=3, timeout=5).results
due = [1 / 3, 2 / 3, 2 / 3]
expect.close("the gradient (2, 4, 4), one of 3 shards empty", torch.cat(found), due, rtol=1e-4)
found = dp.launch(clipped_shards, [[0.0], [0.0]], world_size=2, timeout=5).results
expect.close("the gradient (0, 0) in two shards", torch.cat(found), [0, 0])
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: a scaled loss
#
# In half precision small gradients vanish. So the loss is multiplied by a *loss scale* before backward, and the
# gradient is that much too long. It has been averaged already. Make it the gradient that the optimizer should see, its
# length at most `max_norm`.
#
# For scale 65536 and the true gradient (0.3, 0.4), nothing is to be clipped at 1: the result has length 0.5.


# %% tags=["exercise", "ex4"]
def unscale_and_clip(model, scale, max_norm):
    """Change the gradients in place. Some parameters may have none (`p.grad is None`)."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= scale
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    ### END SOLUTION


# %% tags=["check", "ex4"]
model = with_gradient((0.3 * 65536, None, 0.4 * 65536))
unscale_and_clip(model, 65536.0, 1.0)
expect.close("the length of the true gradient (0.3, 0.4)", gradient(model).norm().item(), 0.5)


def gradient_of_images(scale, max_norm=0.2, images=12):
    """Of the scaled loss, averaged over ranks; without a scale that of the loss itself, clipped."""
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    x, y = data.samples(data.load("digits"), 0, images)
    (models.loss(model, x[rank::k], y[rank::k]) * (scale or 1.0)).backward()
    average_over_ranks(model)
    if scale:
        unscale_and_clip(model, scale, max_norm)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return gradient(model)


alone = dp.launch(gradient_of_images, None, world_size=1).results[0]
for scale in (1024.0, 0.5):
    found = dp.launch(gradient_of_images, scale, world_size=3, timeout=5).results[0]
    expect.close(f"a gradient, 3 ranks, scale {scale:g}", found, alone, rtol=1e-4, atol=1e-9)
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: step or skip
#
# A scale that is too large makes a gradient overflow: it holds an infinite number, or one that is not a number. Then
# the update is skipped and the scale halved. Here each rank sees its own shard. One rank finds an overflow, the others
# do not. Decide, on every rank alike, by one message of at most 8 bytes.


# %% tags=["exercise", "ex5"]
def decide(gradients, scale):
    """Return (whether to step, the scale to go on with): a bool and a float, equal on all ranks.

    gradients   this rank's tensors; they may be empty
    """
    ### BEGIN SOLUTION
    overflow = torch.tensor(float(not all(g.isfinite().all() for g in gradients)))
    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    return not overflow, scale / 2 if overflow else scale
    ### END SOLUTION


# %% tags=["check", "ex5"]
def decided(shards):
    step, scale = decide([torch.tensor(part) for part in shards[dist.get_rank()]], 1024.0)
    return bool(step), float(scale)


fine, inf, nan = [1.0, -2.0], [3.0, math.inf], [math.nan]
cases = {"no rank overflows": [[fine], [fine]], "rank 1 of 2 overflows": [[fine], [fine, inf]]}
for name, shards in cases.items():
    run = dp.launch(decided, shards, world_size=2, timeout=5)
    due = (True, 1024.0) if name.startswith("no") else (False, 512.0)
    expect.equal(f"step and scale on each rank, {name}", run.results, [due] * 2)
expect.at_most("messages sent by rank 0", len(run.collectives[0]), 1)
expect.at_most("payload of rank 0", sum(one.payload for one in run.collectives[0]), 8, unit="bytes")
print("exercise 5: right")

# %% tags=["check", "ex5", "hidden"]
cases = {
    "rank 0 of 3 not a number, a shard empty": [[nan], [fine], [[]]],
    "minus infinity on rank 2 of 3": [[fine], [], [[-math.inf], fine]],
    "overflow on every rank": [[nan, inf], [inf], [inf]],
}
for name, shards in cases.items():
    found = dp.launch(decided, shards, world_size=3, timeout=5).results
    expect.equal(f"step and scale on each rank, {name}", found, [(False, 512.0)] * 3)
print("exercise 5: right")

# %% [markdown]
# ## Exercise 6: the schedule
#
# A schedule is planned in updates, here 100 of them down a cosine. Write the loop: an update for every K micro-batches,
# averaged over ranks, and the schedule in step with it. All micro-batches have equally many samples, and there are a
# multiple of K of them.
#
# <details><summary>Hint</summary>
#
# Neither K nor k is a factor of the number of updates. The first update uses the learning rate that the schedule starts
# with.
#
# </details>


# %% tags=["exercise", "ex6"]
def train_on_schedule(model, optimizer, scheduler, micro_batches, K):
    """Train on this rank's `micro_batches`, pairs (x, y), by `models.loss(model, x, y)`, a mean."""
    ### BEGIN SOLUTION
    for first in range(0, len(micro_batches), K):
        optimizer.zero_grad()
        for x, y in micro_batches[first : first + K]:
            (models.loss(model, x, y) / K).backward()
        average_over_ranks(model)
        optimizer.step()
        scheduler.step()
    ### END SOLUTION


# %% tags=["check", "ex6"]
class NotingSGD(torch.optim.SGD):
    """Notes the learning rate of each update."""

    def step(self, closure=None):
        self.rates = [*getattr(self, "rates", []), self.param_groups[0]["lr"]]
        return super().step(closure)


def scheduled(K, updates=100):
    """The gradient on rank r is r + 1."""
    model = models.build("weight", data.load("count"), dtype=torch.float64)
    optimizer = NotingSGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    one = torch.full((2, 1), dist.get_rank() + 1.0), torch.zeros(2)
    train_on_schedule(model, optimizer, scheduler, [one] * (K * updates), K)
    return optimizer.rates, scheduler.get_last_lr()[0], model.w.item()


for k, K in ((2, 4), (4, 1)):
    rates, last, w = dp.launch(scheduled, K, world_size=k, timeout=5).results[1]
    due = [(1 + math.cos(math.pi * update / 100)) / 2 for update in range(100)]
    expect.equal(f"updates made, k = {k}, K = {K}", len(rates), 100)
    for update in (0, 25, 50, 99):
        what = f"the learning rate of update {update}, k = {k}, K = {K}"
        expect.close(what, rates[update], due[update], atol=1e-6)
    expect.close(f"the learning rate at the end, k = {k}, K = {K}", last, 0.0, atol=1e-6)
    expect.close(f"w at the end, k = {k}, K = {K}", w, 1 - sum(due) * (k + 1) / 2)
print("exercise 6: right")

# %% [markdown]
# ## Exercise 7: one update
#
# All of it in the right order. On each rank `p.grad` holds the gradient of `scaler.scale` times its own mean loss; the
# parts of the batch are equally large. Make the update that one process would make with the whole batch. An overflow on
# one rank skips it on all. `scaler.update` wants to know whether there was one: it halves the scale, or doubles it
# after three good updates. The schedule moves once an update, also if that is skipped. At the end no parameter has a
# gradient left.
#
# Goal: no collective beside the average of the gradients.


# %% tags=["exercise", "ex7"]
def update(model, optimizer, scheduler, scaler, *, max_norm):
    """Make one update, or skip it; ready for the next backward."""
    ### BEGIN SOLUTION
    average_over_ranks(model)
    for parameter in model.parameters():
        parameter.grad /= scaler.scale
    overflow = not all(parameter.grad.isfinite().all() for parameter in model.parameters())
    if not overflow:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    optimizer.zero_grad()
    scaler.update(overflow)
    scheduler.step()
    ### END SOLUTION


# %% tags=["check", "ex7", "points-2"]
def trained(by):
    """Train on this rank's part of every batch. In update 3 the last rank's loss is infinite."""
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    scaler, scales = LossScaler(), []
    for step in range(STEPS):
        x, y = data.samples(data.load("digits"), step * BATCH, (step + 1) * BATCH)
        factor = math.inf if step == 3 and rank == k - 1 else 10.0  # 10: long enough to be clipped
        (models.loss(model, x[rank::k], y[rank::k]) * factor * scaler.scale).backward()
        by(model, optimizer, scheduler, scaler, max_norm=MAX_NORM)
        scales.append(scaler.scale)
    left = sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None)
    return flat(model.parameters()), scales, scheduler.get_last_lr()[0], left


alone, *due, _ = dp.launch(trained, as_lesson_06, world_size=1).results[0]
for k in (2, 3):
    run = dp.launch(trained, update, world_size=k, timeout=5)
    for rank, (found, scales, rate, left) in enumerate(run.results):
        expect.equal(f"loss scales on rank {rank} of {k}, update by update", scales, due[0])
        what = f"a parameter on rank {rank} of {k}, after {STEPS} updates"
        expect.close(what, found, alone, rtol=1e-5, atol=1e-8)
        expect.close(f"the learning rate on rank {rank} of {k} at the end", rate, due[1], atol=1e-9)
        expect.equal(f"gradients left on rank {rank} of {k}", left, 0.0)
calls = len(run.collectives[0])
tensors = len([*new_model().parameters()])
expect.at_most(f"collectives in {STEPS} updates of {tensors} tensors", calls, STEPS * tensors)
print("exercise 7: right")

# %% [markdown]
# ## Extension, exercise 8: one update, in shards
#
# Now each rank holds and updates its own shard. `shard.grad` is its part of the averaged, still scaled gradient. Here
# neither the length nor the overflow can be known alone. Do both with *one* message of at most 8 bytes an update. (The
# schedule is left out.)
#
# <details><summary>Hint</summary>
#
# What does the sum of squares become when one entry is infinite or not a number?
#
# </details>


# %% tags=["exercise", "ex8"]
def update_shard(shard, optimizer, scaler, *, max_norm):
    """Make one update of `shard`, an nn.Parameter of shape (n,), or skip it; as in exercise 7."""
    ### BEGIN SOLUTION
    shard.grad /= scaler.scale
    norm = shard.grad.square().sum()
    dist.all_reduce(norm)
    norm = norm.sqrt()
    overflow = not norm.isfinite()
    if not overflow:
        shard.grad *= (max_norm / norm).clamp(max=1.0)
        optimizer.step()
    optimizer.zero_grad()
    scaler.update(overflow)
    ### END SOLUTION


# %% tags=["check", "ex8"]
def sharded(sizes):
    """Train seven numbers on given gradients, of which one is infinite; a shard a rank."""
    chance = torch.Generator().manual_seed(5)
    whole = 4 * torch.randn(STEPS, 7, generator=chance, dtype=torch.float64)
    whole[2, 6], whole[6, 0], whole[5] = math.inf, math.nan, whole[5] / 10  # the others are long
    shard = nn.Parameter(torch.zeros(sizes[dist.get_rank()], dtype=torch.float64))
    optimizer, scaler = torch.optim.SGD([shard], lr=0.1, momentum=0.9), LossScaler()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1.0)
    for step in range(STEPS):
        shard.grad = scaler.scale * whole[step].split(sizes)[dist.get_rank()]
        if len(sizes) == 1:
            as_lesson_06(nn.ParameterList([shard]), optimizer, schedule, scaler)
        else:
            update_shard(shard, optimizer, scaler, max_norm=MAX_NORM)
    return shard.detach(), scaler.scale


alone, scale = dp.launch(sharded, [7], world_size=1).results[0]
for sizes in ([3, 4], [2, 0, 5]):
    run = dp.launch(sharded, sizes, world_size=len(sizes), timeout=5)
    parts, scales = zip(*run.results, strict=True)
    expect.equal(f"loss scales, shards of {sizes}", [*scales], [scale] * len(sizes))
    found = torch.cat(parts)
    expect.close(f"a number after {STEPS} updates, shards of {sizes}", found, alone, rtol=1e-5)
    payloads = [entry.payload for entry in run.collectives[0]]
    expect.equal(f"messages in {STEPS} updates, shards of {sizes}", len(payloads), STEPS)
    expect.at_most("the largest payload", max(payloads), 8, unit="bytes")
print("exercise 8: right")
