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
# # Lab 6. ZeRO, stage by stage
#
# Under plain data parallelism every rank holds everything. You take it apart: first the optimizer state (stage 1), then
# the gradients (stage 2), then the parameters (stage 3). Each step has a budget in bytes held and a budget in bytes
# sent, and must train exactly as one process does. **Core: exercises 1 to 5, 45 minutes.** Before it:
# [lesson 08](../../lessons/08_zero.ipynb).
#
# P is the size of all parameters in bytes, k the number of ranks. What is sent is counted where a ring hands a chunk to
# its neighbour, and what is held is the tensors' own size.

# %%
import torch
import torch.distributed as dist

import dpviz as dp
from dpviz import data, models
from dpviz.labs import expect
from dpviz.measure.memory import distinct_bytes
from dpviz.parallel import ring

X, Y = data.samples(data.load("digits"), 0, 24)


def new_model():
    return models.build("deep", data.load("digits"), layers=3, width=16, dtype=torch.float64)


class Ring:
    """reduce_scatter(whole) returns this rank's k-th of the sum over ranks; gather(shard) all shards, end to end."""

    def __init__(self):
        self.sent = 0

    def reduce_scatter(self, whole):
        return ring.reduce_scatter(whole, exchange=self._counted)

    def gather(self, shard):
        return ring.all_gather(shard, exchange=self._counted)

    def _counted(self, outgoing, incoming):
        self.sent += outgoing.nbytes
        ring.exchange(outgoing, incoming)


def part(flat, rank, k):
    """The rank-th of k equal parts of `flat`, which k divides."""
    return flat.view(k, -1)[rank].clone()


def padded(tensors, k):
    """The tensors end to end, and zeros until k divides the length."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % k))


def one_process(steps, *, x=X, y=Y):
    """All parameters after so many steps of AdamW on the whole batch."""
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        models.loss(model, x, y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# %% [markdown]
# ## Exercise 1: my shard
#
# `flat` holds n numbers; k does not have to divide n. Pad with zeros at the end until it does, and return the part that
# rank `rank` owns: all parts are equally long, and rank 0 has the first.


# %% tags=["exercise", "ex1"]
def my_shard(flat, rank, k):
    """Return the rank-th of k equal parts of `flat`, padded with zeros: shape (ceil(n / k),)."""
    ### BEGIN SOLUTION
    length = -(-len(flat) // k)
    whole = flat.new_zeros(k * length)
    whole[: len(flat)] = flat
    return whole[rank * length : (rank + 1) * length]
    ### END SOLUTION


# %% tags=["check", "ex1"]
for n, k in ((8, 4), (10, 4), (2, 3)):
    shards = [my_shard(torch.arange(1.0, n + 1), rank, k) for rank in range(k)]
    lengths = {len(shard) for shard in shards}
    expect.equal(f"the lengths of the shards of {n} numbers on {k} ranks", lengths, {-(-n // k)})
    together = torch.cat(shards).tolist()
    expect.equal("the shards end to end", together, [*map(float, range(1, n + 1))] + [0.0] * (-n % k))
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: stage 1
#
# The optimizer gets only your shard of the parameters, so it keeps moments for a k-th. `shard` is a parameter with this
# rank's part of `padded(parameters, k)`. After backward, `p.grad` holds your own gradient. Do the rest of the step.
#
# **Budget.** Sent: at most 2.02 (k-1)/k P. An all-reduce and a gather would be three.
#
# <details><summary>Hint</summary>
#
# Who needs the averaged gradient of the numbers that you do not own?
#
# </details>


# %% tags=["exercise", "ex2"]
def stage1_step(parameters, shard, optimizer, r):
    """Update `parameters` on every rank. `r` is a Ring; `optimizer` holds [shard]."""
    ### BEGIN SOLUTION
    k = dist.get_world_size()
    shard.grad = r.reduce_scatter(padded([p.grad for p in parameters], k)) / k
    optimizer.step()
    whole = r.gather(shard.detach())
    sizes = [p.numel() for p in parameters]
    for p, values in zip(parameters, whole[: sum(sizes)].split(sizes), strict=True):
        p.data.copy_(values.view_as(p))
    ### END SOLUTION


# %% tags=["check", "ex2", "points-2"]
def train_stage1(steps):
    model, rank, k, r = new_model(), dist.get_rank(), dist.get_world_size(), Ring()
    parameters = list(model.parameters())
    values = padded([p.detach() for p in parameters], k)
    shard = torch.nn.Parameter(part(values, rank, k))
    optimizer = torch.optim.AdamW([shard], lr=0.01)
    for _ in range(steps):
        model.zero_grad()
        models.loss(model, X[rank::k], Y[rank::k]).backward()
        stage1_step(parameters, shard, optimizer, r)
    after = torch.cat([p.detach().flatten() for p in parameters])
    return {"after": after, "sent": r.sent / steps, "P": values.nbytes}


for k in (2, 3):
    for rank, found in enumerate(dp.launch(train_stage1, 3, world_size=k, timeout=10).results):
        limit = 2.02 * (k - 1) / k * found["P"]
        expect.close(f"a parameter on rank {rank} of {k}", found["after"], one_process(3), rtol=1e-8, atol=1e-10)
        expect.at_most(f"sent by rank {rank} of {k} in a step", found["sent"], limit, unit="bytes")
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: stage 2
#
# Now no rank keeps a whole gradient either. As soon as backward has brought the gradients of *all* `parameters` (those
# of one layer), reduce them, hand your shard of their mean to `keep`, and let the whole gradients go (set them to
# `None`), while backward goes on with the layer before.
#
# **Budget.** At any moment whole gradients of one layer at most; after backward none. Sent: at most 1.02 (k-1)/k P.
#
# <details><summary>Hint</summary>
#
# `p.register_post_accumulate_grad_hook(function)` calls function(p) when p.grad is ready. Count them.
#
# </details>


# %% tags=["exercise", "ex3"]
def reduce_when_ready(parameters, keep, r):
    """Register hooks on `parameters`; `keep(shard)` takes this rank's shard of their mean gradient."""
    ### BEGIN SOLUTION
    waiting = len(parameters)

    def came(_):
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            waiting, k = len(parameters), dist.get_world_size()
            keep(r.reduce_scatter(padded([p.grad for p in parameters], k)) / k)
            for p in parameters:
                p.grad = None

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    ### END SOLUTION


# %% tags=["check", "ex3", "points-2"]
class Watched(Ring):
    """Notes, at each reduce-scatter, how many bytes of whole gradients the model holds."""

    def __init__(self, model):
        super().__init__()
        self.model, self.held = model, []

    def reduce_scatter(self, whole):
        self.held.append(sum(p.grad.nbytes for p in self.model.parameters() if p.grad is not None))
        return super().reduce_scatter(whole)


def stage2(times):
    model, rank, k = new_model(), dist.get_rank(), dist.get_world_size()
    layers, kept, r = [list(layer.parameters()) for layer in models.units(model)], [], Watched(model)
    for layer in layers:
        reduce_when_ready(layer, kept.append, r)
    for _ in range(times):
        models.loss(model, X[rank::k], Y[rank::k]).backward()
    left = sum(p.grad is not None for p in model.parameters())
    sizes = [sum(p.nbytes for p in layer) for layer in layers]
    return {"kept": kept, "held": r.held, "left": left, "sent": r.sent / times, "sizes": sizes}


def shards_of_one_process(rank, k):
    model = new_model()
    models.loss(model, X, Y).backward()
    layers = [list(layer.parameters()) for layer in models.units(model)]
    return [part(padded([p.grad for p in layer], k), rank, k) for layer in reversed(layers)]


results = dp.launch(stage2, 2, world_size=3, timeout=10).results
for rank, found in enumerate(results):
    wanted = shards_of_one_process(rank, 3) * 2  # two backwards
    expect.equal(f"gradients that are left on rank {rank} after backward", found["left"], 0)
    expect.equal(f"the layers that rank {rank} reduced in two backwards", len(found["kept"]), len(wanted))
    for one, other in zip(found["kept"], wanted, strict=True):
        expect.close(f"a gradient in a shard of rank {rank}", one, other, rtol=1e-8, atol=1e-12)
    expect.at_most("whole gradients held at once", max(found["held"]), max(found["sizes"]), unit="bytes")
    limit = 1.02 * 2 / 3 * sum(found["sizes"])
    expect.at_most(f"sent by rank {rank} in a backward", found["sent"], limit, unit="bytes")
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: stage 3
#
# Parameters are a loan now. `whole` is a layer's flat tensor, of which its parameters are views; between uses its
# memory is given back, and only `shard` stays. Write what happens when the layer is needed, and when it is not.
#
# **Budget.** Outside of the loan 0 bytes of `whole`; sent at most 1.02 (k-1)/k of the layer for each loan.
#
# <details><summary>Hint</summary>
#
# `tensor.untyped_storage().resize_(bytes)` gives memory back, and takes it again; views of it stay valid.
#
# </details>


# %% tags=["exercise", "ex4"]
class Loan:
    """with Loan(whole, shard, r): the layer can be used; before and after it `whole` has no memory."""

    def __init__(self, whole, shard, r):
        self.whole, self.shard, self.r = whole, shard, r

    def __enter__(self):
        ### BEGIN SOLUTION
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
        self.whole.copy_(self.r.gather(self.shard))
        ### END SOLUTION

    def __exit__(self, *error):
        ### BEGIN SOLUTION
        self.whole.untyped_storage().resize_(0)
        ### END SOLUTION


# %% tags=["check", "ex4", "points-2"]
def borrow(config):
    torch.manual_seed(0)
    layer, rank, k, r = torch.nn.Linear(7, 5).double(), dist.get_rank(), dist.get_world_size(), Ring()
    alone = layer(torch.ones(2, 7, dtype=torch.float64)).detach()
    whole = padded([p.detach() for p in layer.parameters()], k)
    shard, size = part(whole, rank, k), whole.nbytes
    layer.weight.data, layer.bias.data = whole[:35].view(5, 7), whole[35:40]
    whole.untyped_storage().resize_(0)
    held = []
    for _ in range(2):
        with Loan(whole, shard, r):
            held.append(distinct_bytes([whole, layer.weight, layer.bias]))
            used = layer(torch.ones(2, 7, dtype=torch.float64)).detach()
        held.append(whole.untyped_storage().nbytes())
    return {"apart": (used - alone).abs().max().item(), "held": held, "sent": r.sent / 2, "size": size}


for rank, found in enumerate(dp.launch(borrow, world_size=3, timeout=10).results):
    expect.close(f"the output of the borrowed layer on rank {rank}, off by", found["apart"], 0.0, atol=1e-12)
    expect.equal("bytes held in and after each loan", found["held"], [found["size"], 0] * 2)
    expect.at_most(f"sent by rank {rank} for a loan", found["sent"], 1.02 * 2 / 3 * found["size"], unit="bytes")
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: one norm
#
# Gradients are clipped by the norm of the *whole* gradient, of which you hold a shard. A rank may send 8 bytes for it.


# %% tags=["exercise", "ex5"]
def clip_shards(shard, max_norm):
    """Scale `shard` (float64) so that the whole gradient is not longer than max_norm; return its norm before that."""
    ### BEGIN SOLUTION
    total = shard.square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    shard *= (max_norm / norm).clamp(max=1.0)
    return norm.item()
    ### END SOLUTION


# %% tags=["check", "ex5"]
def clipped(gradients):
    shard = torch.tensor(gradients[dist.get_rank()], dtype=torch.float64)
    norm = clip_shards(shard, 1.0)
    return norm, shard.tolist()


run = dp.launch(clipped, [[3.0], [4.0]], world_size=2, timeout=10)
expect.close("the norm on each rank", [norm for norm, _ in run.results], [5.0, 5.0])
expect.close("the clipped gradient, shard by shard", [shard for _, shard in run.results], [[0.6], [0.8]])
expect.at_most("the largest payload sent", max(c.payload for c in run.collectives[0]), 8, unit="bytes")
small = dp.launch(clipped, [[0.3, 0.0], [0.0], [0.4]], world_size=3, timeout=10).results
expect.close("a gradient that is short enough", [shard for _, shard in small], [[0.3, 0.0], [0.0], [0.4]])
print("exercise 5: right")

# %% [markdown]
# ## Extension, exercise 6: another number of ranks
#
# A run on 4 ranks saved its shards. Tonight there are 2 ranks, or 3. `shards` are all of them, in order, of n numbers.


# %% tags=["exercise", "ex6"]
def reshard(shards, n, k):
    """Return the k shards, equally long and padded with zeros, of the n numbers that `shards` hold."""
    ### BEGIN SOLUTION
    flat = torch.cat(shards)[:n]
    whole = torch.nn.functional.pad(flat, (0, -n % k))
    return list(whole.view(k, -1))
    ### END SOLUTION


# %% tags=["check", "ex6"]
for n, before, after in ((10, 4, 2), (10, 4, 3), (5, 2, 4)):
    flat = torch.arange(1.0, n + 1)
    old = [part(padded([flat], before), rank, before) for rank in range(before)]
    new = [part(padded([flat], after), rank, after).tolist() for rank in range(after)]
    found = [shard.tolist() for shard in reshard(old, n, after)]
    expect.equal(f"the shards of {n} numbers, from {before} ranks to {after}", found, new)
print("exercise 6: right")

# %% [markdown]
# ## Extension, exercise 7: accumulate within a budget
#
# K micro-batches, one update, gradients sharded. There are two ways, and each breaks one budget. `backward(i)` runs
# micro-batch i (its loss is already divided by K) and leaves its gradient in `p.grad`, on top of what is there.
# Write both: with `sharded=True` whole gradients are gone after each micro-batch, with `sharded=False` the ranks talk
# once. Return your shard of the mean over ranks of the sum over micro-batches.


# %% tags=["exercise", "ex7"]
def accumulate(parameters, backward, K, r, *, sharded):
    """Return this rank's shard, flat; when it returns, every p.grad is None."""
    ### BEGIN SOLUTION
    k, shard = dist.get_world_size(), 0
    for i in range(K):
        backward(i)
        if sharded or i == K - 1:
            shard = shard + r.reduce_scatter(padded([p.grad for p in parameters], k)) / k
            for p in parameters:
                p.grad = None
    return shard
    ### END SOLUTION


# %% tags=["check", "ex7", "points-2"]
def accumulated(sharded):
    model, rank, k, r, held = new_model(), dist.get_rank(), dist.get_world_size(), Ring(), []
    parameters, mine = list(model.parameters()), range(rank, 24, k)

    def backward(i):
        held.append(sum(p.grad.nbytes for p in parameters if p.grad is not None))
        some = list(mine)[i * 4 : (i + 1) * 4]
        (models.loss(model, X[some], Y[some]) / 3).backward()

    shard = accumulate(parameters, backward, 3, r, sharded=sharded)
    left = sum(p.grad is not None for p in parameters)
    P = sum(p.nbytes for p in parameters)
    return {"shard": shard, "held": held, "left": left, "sent": r.sent, "P": P}


whole = new_model()
models.loss(whole, X, Y).backward()
for sharded, times in ((True, 3), (False, 1)):
    for rank, found in enumerate(dp.launch(accumulated, sharded, world_size=2, timeout=10).results):
        wanted = part(padded([p.grad for p in whole.parameters()], 2), rank, 2)
        expect.close(f"a gradient on rank {rank}, sharded={sharded}", found["shard"], wanted, rtol=1e-8, atol=1e-12)
        expect.equal("gradients that are left", found["left"], 0)
        limit = times * 1.02 / 2 * found["P"]
        expect.at_most(f"sent by rank {rank}, sharded={sharded}", found["sent"], limit, unit="bytes")
        if sharded:
            expect.equal("whole gradients held between micro-batches", found["held"], [0, 0, 0])
print("exercise 7: right")
