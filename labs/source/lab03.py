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
# # Lab 3. The ring
#
# You build the all-reduce that data parallelism lives on from messages between neighbours: right sums, and no rank
# sends more bytes than it must. Where ranks matter, checks run real ones. **Core: exercises 1 to 6, 45 minutes.**
# Before it: [lesson 04](../../lessons/04_ring_all_reduce.ipynb).
#
# S is the payload: the bytes of the tensor that each rank brings. From exercise 4 on you send by `post`, which counts
# the bytes of the tensors that your rank sends. That is what is measured; gloo's own headers are not.
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import torch
import torch.distributed as dist

import dpviz as dp
from dpviz.labs import expect
from dpviz.parallel import ring


class Post:
    """Carries tensors between ranks. Every function below gets one, called `post`.

    send(tensor, to)              to rank `to`; returns when that rank has taken it
    receive(tensor, source)       fills `tensor` with what rank `source` sends
    exchange(outgoing, incoming)  both at once: to the next rank, from the one before
    """

    def __init__(self):
        self.sent, self.largest = 0, 0  # bytes in all, and of the largest message

    def send(self, tensor, to):
        self._count(tensor)
        dist.send(tensor.contiguous(), to)

    def receive(self, tensor, source):
        dist.recv(tensor, source)

    def exchange(self, outgoing, incoming):
        self._count(outgoing)
        ring.exchange(outgoing, incoming)

    def _count(self, tensor):
        self.sent += tensor.nbytes
        self.largest = max(self.largest, tensor.nbytes)


def payload(n, rank):
    """What rank `rank` brings: n whole numbers as float64, so that sums are exact in any order."""
    return torch.arange(n, dtype=torch.float64) * (rank + 1) + 10 * rank


def total(n, k):
    return sum(payload(n, rank) for rank in range(k))


def on_ranks(function, n, k):
    """Launch function(n, post) on k ranks. Return (results, posts), one of each a rank."""

    def called(n):
        post = Post()
        return function(n, post), (post.sent, post.largest)

    run = dp.launch(called, n, world_size=k, timeout=5)
    calls = [entry.name for entry in run.collectives[0]]
    expect.equal("collectives of torch that rank 0 called", calls, [])
    return [result for result, _ in run.results], [post for _, post in run.results]


# %% [markdown]
# ## Exercise 1: my neighbours
#
# The k ranks stand in a ring. Each sends to the next and receives from the one before. The last one's next is rank 0.


# %% tags=["exercise", "ex1"]
def neighbours(rank, k):
    """Return (the next rank, the rank before)."""
    ### BEGIN SOLUTION
    return (rank + 1) % k, (rank - 1) % k
    ### END SOLUTION


# %% tags=["check", "ex1"]
found = [neighbours(rank, 4) for rank in range(4)]
expect.equal("the neighbours of ranks 0 to 3", found, [(1, 3), (2, 0), (3, 1), (0, 2)])
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden"]
found = [neighbours(rank, 2) for rank in range(2)]
expect.equal("the neighbours of 2 ranks", found, [(1, 1), (0, 0)])
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: k chunks
#
# A tensor of n elements is cut into k chunks, end to end. Chunk i belongs to rank i. n need not be a multiple of k:
# then the sizes differ by one element at most, and the longer chunks come first.
#
# <details><summary>Hint</summary>
#
# n // k for each is too few when n is no multiple of k. How many elements are left, and who takes them?
#
# </details>


# %% tags=["exercise", "ex2"]
def chunk_sizes(n, k):
    """Return the sizes of the k chunks, a list of whole numbers."""
    ### BEGIN SOLUTION
    return [n // k + (i < n % k) for i in range(k)]
    ### END SOLUTION


# %% tags=["check", "ex2"]
for n, k, sizes in ((12, 4, [3, 3, 3, 3]), (10, 4, [3, 3, 2, 2])):
    found = chunk_sizes(n, k)
    expect.equal(f"elements in the {k} chunks of {n}, together", sum(found), n)
    expect.equal(f"sizes of the {k} chunks of {n}", list(found), sizes)
print("exercise 2: right")

# %% tags=["check", "ex2", "hidden"]
for n, k, sizes in ((9, 4, [3, 2, 2, 2]), (2, 3, [1, 1, 0]), (1003, 2, [502, 501])):
    expect.equal(f"sizes of the {k} chunks of {n}", list(chunk_sizes(n, k)), sizes)
print("exercise 2: right")

# %% [markdown]
# Torch cuts in this way, too: `tensor.tensor_split(k)` gives k views. Use it from here on.
#
# ## Exercise 3: one step
#
# Send `outgoing` to the next rank, and receive into `incoming` from the rank before. All ranks call you at the same
# time. `dist.send` returns only when the other rank receives.
#
# <details><summary>Hint</summary>
#
# `dist.isend` and `dist.irecv` only begin, and return a handle. A handle has `wait()`. Begin both before you wait.
#
# </details>


# %% tags=["exercise", "ex3"]
def exchange(outgoing, incoming):
    """Send `outgoing` to the next rank while `incoming` is filled by the rank before."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    handles = [dist.irecv(incoming, (rank - 1) % k), dist.isend(outgoing, (rank + 1) % k)]
    for handle in handles:
        handle.wait()
    ### END SOLUTION


# %% tags=["check", "ex3"]
def one_step(n):
    """Rank r sends n + r elements of value r."""
    rank, k = dist.get_rank(), dist.get_world_size()
    before = (rank - 1) % k
    incoming = torch.full((n + before,), -1.0)
    exchange(torch.full((n + rank,), float(rank)), incoming)
    return incoming


for k in (2, 3, 4):
    for rank, found in enumerate(dp.launch(one_step, 100_000, world_size=k, timeout=5).results):
        expect.close(f"what rank {rank} of {k} received", found.unique(), [(rank - 1) % k])
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: reduce-scatter
#
# Each rank brings a tensor of n elements. Afterwards rank i holds chunk i of the *sum* over ranks, and nothing more.
# A chunk goes round, and every rank that it meets adds its own part. Leave `tensor` as it is.
#
# **Target.** Nobody sends more than S less one chunk: (k - 1)/k · S.
#
# <details><summary>Hint</summary>
#
# k - 1 steps. A chunk ends with its owner, so it starts at the owner's next rank. Which chunk do you send first, then?
# What you receive in a step you send in the next one, with your own part added.
#
# </details>


# %% tags=["exercise", "ex4"]
def reduce_scatter(tensor, post):
    """Return this rank's chunk of the sum over ranks; `tensor` is flat, of n elements."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.tensor_split(k))
    for step in range(k - 1):
        send, receive = (rank - 1 - step) % k, (rank - 2 - step) % k
        incoming = torch.empty_like(chunks[receive])
        post.exchange(chunks[send], incoming)
        chunks[receive] = chunks[receive] + incoming
    return chunks[rank]
    ### END SOLUTION


# %% tags=["check", "ex4"]
def scattered(n, post):
    tensor = payload(n, dist.get_rank())
    return reduce_scatter(tensor, post), torch.equal(tensor, payload(n, dist.get_rank()))


def check_reduce_scatter(n, k):
    results, posts = on_ranks(scattered, n, k)
    for rank, (found, as_it_was) in enumerate(results):
        expect.close(f"chunk {rank} of {k}, n = {n}", found, total(n, k).tensor_split(k)[rank])
        expect.equal(f"whether rank {rank}'s own tensor is as it was", as_it_was, True)
    sent = [sent for sent, _ in posts]
    expect.at_least(f"bytes sent by all {k} ranks", sum(sent), (k - 1) * 8 * n, unit="bytes")
    expect.at_most(f"bytes sent by one rank of {k}", max(sent), 8 * (n - n // k), unit="bytes")


for k in (2, 3, 4):
    check_reduce_scatter(1200, k)
print("exercise 4: right")


# %% tags=["check", "ex4"]
def by_torch(n):
    rank, k = dist.get_rank(), dist.get_world_size()
    chunk = torch.empty(n // k, dtype=torch.float64)
    dist.reduce_scatter(chunk, list(payload(n, rank).tensor_split(k)))
    return chunk


results, _ = on_ranks(scattered, 1200, 3)
for rank, theirs in enumerate(dp.launch(by_torch, 1200, world_size=3, timeout=10).results):
    expect.close(f"rank {rank}'s chunk, against torch's", results[rank][0], theirs, rtol=0)
check_reduce_scatter(1203, 4)
print("exercise 4: right")

# %% tags=["check", "ex4", "hidden"]
for case in ((1001, 2), (1001, 3), (3, 4)):
    check_reduce_scatter(*case)
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: all-gather
#
# Rank i holds chunk i of a tensor of n elements. Afterwards every rank holds all of it, in order. The same target.


# %% tags=["exercise", "ex5"]
def all_gather(chunk, n, post):
    """Return the whole tensor, flat, n elements; `chunk` is this rank's."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    whole = chunk.new_empty(n)
    chunks = whole.tensor_split(k)
    chunks[rank].copy_(chunk)
    for step in range(k - 1):
        post.exchange(chunks[(rank - step) % k], chunks[(rank - 1 - step) % k])
    return whole
    ### END SOLUTION


# %% tags=["check", "ex5"]
def gathered(n, post):
    chunks = payload(n, 0).tensor_split(dist.get_world_size())
    return all_gather(chunks[dist.get_rank()].clone(), n, post)


def check_all_gather(n, k):
    results, posts = on_ranks(gathered, n, k)
    for rank, found in enumerate(results):
        expect.close(f"what rank {rank} of {k} holds, n = {n}", found, payload(n, 0))
    sent = [sent for sent, _ in posts]
    expect.at_least(f"bytes sent by all {k} ranks", sum(sent), (k - 1) * 8 * n, unit="bytes")
    expect.at_most(f"bytes sent by one rank of {k}", max(sent), 8 * (n - n // k), unit="bytes")


for n, k in ((1200, 2), (1200, 3), (1203, 4)):
    check_all_gather(n, k)
print("exercise 5: right")


# %% tags=["check", "ex5", "hidden"]
def by_torch(n):
    mine = payload(n, 0).tensor_split(dist.get_world_size())[dist.get_rank()]
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


theirs = dp.launch(by_torch, 1200, world_size=3, timeout=10).results[2]
results, _ = on_ranks(gathered, 1200, 3)
expect.close("what rank 2 holds, against torch's", results[2], theirs, rtol=0)
for n, k in ((1001, 2), (1001, 3), (3, 4)):
    check_all_gather(n, k)
print("exercise 5: right")

# %% [markdown]
# ## Exercise 6: all-reduce
#
# Replace the tensor by its sum over ranks, on every rank. It has any shape and any number of elements.
#
# **Target.** At most 1.55 S sent by any of 4 ranks, and 2 (k - 1)/k · S in general, give or take the remainder of a
# division. (The way through rank 0 sends 3 S from there.)


# %% tags=["exercise", "ex6"]
def all_reduce(tensor, post):
    """Replace the contiguous `tensor` by its sum over ranks, in place."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(k)
    for step in range(k - 1):
        mine = chunks[(rank - 2 - step) % k]
        incoming = torch.empty_like(mine)
        post.exchange(chunks[(rank - 1 - step) % k], incoming)
        mine += incoming
    for step in range(k - 1):
        post.exchange(chunks[(rank - step) % k], chunks[(rank - 1 - step) % k])
    ### END SOLUTION


# %% tags=["check", "ex6", "points-2"]
def reduced(n, post):
    tensor = payload(n, dist.get_rank()).view(-1, 1)
    all_reduce(tensor, post)
    return tensor


def check_all_reduce(n, k, share):
    results, posts = on_ranks(reduced, n, k)
    for rank, found in enumerate(results):
        expect.close(f"the sum on rank {rank} of {k}, n = {n}", found, total(n, k).view(-1, 1))
    sent = [sent / (8 * n) for sent, _ in posts]
    expect.at_least(f"sent by all {k} ranks together", sum(sent), 2 * (k - 1) - 1e-9, unit="S")
    expect.at_most(f"sent by one rank of {k}, n = {n}", max(sent), share, unit="S")


for n, k, share in ((1200, 4, 1.55), (1203, 4, 1.55), (1001, 3, 1.34), (1001, 2, 1.01)):
    check_all_reduce(n, k, share)
print("exercise 6: right")


# %% tags=["check", "ex6", "hidden"]
def by_torch(n):
    tensor = payload(n, dist.get_rank()).view(-1, 1)
    dist.all_reduce(tensor)
    return tensor


theirs = dp.launch(by_torch, 1201, world_size=3, timeout=10).results[1]
expect.close("the sum on rank 1, against torch's", on_ranks(reduced, 1201, 3)[0][1], theirs, rtol=0)
check_all_reduce(2, 3, 2)
print("exercise 6: right")

# %% [markdown]
# ## Extension, exercise 7: one tells all
#
# A broadcast: rank `source` has a tensor, and all others want it. Sent to each of them it costs `source` (k - 1) S.
#
# **Target.** No rank sends more than 1 S, and no message is longer than S/8, rounded up to an element. (Then the last
# rank need not wait until all of it has arrived at the first.) You may use `send` and `receive`.


# %% tags=["exercise", "ex7"]
def broadcast(tensor, source, post):
    """Fill the flat `tensor` with that of rank `source`, in place."""
    ### BEGIN SOLUTION
    rank, k = dist.get_rank(), dist.get_world_size()
    for part in tensor.tensor_split(8):
        if rank != source:
            post.receive(part, (rank - 1) % k)
        if (rank + 1) % k != source:
            post.send(part, (rank + 1) % k)
    ### END SOLUTION


# %% tags=["check", "ex7"]
def told(settings, post):
    n, source = settings
    tensor = payload(n, dist.get_rank())
    broadcast(tensor, source, post)
    return tensor


for n, k, source in ((1200, 4, 0), (1203, 3, 2), (1001, 4, 2)):
    results, posts = on_ranks(told, (n, source), k)
    for rank, found in enumerate(results):
        expect.close(f"the tensor of rank {rank} of {k}, from {source}", found, payload(n, source))
    most, longest = map(max, zip(*posts, strict=True))
    expect.at_most(f"bytes sent by one rank of {k}", most, 8 * n, unit="bytes")
    expect.at_most("the largest message", longest, 8 * -(-n // 8), unit="bytes")
print("exercise 7: right")
