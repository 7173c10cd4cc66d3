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
# # Lab 4. Buckets
#
# Backward makes the last layer's gradient first. It can travel while the rest is still being computed. You build that:
# buckets, hooks, all-reduces that are begun in the middle of backward. Every check of gradients runs real ranks, and
# whether you overlap is decided by the order of events, not by seconds. **Core: exercises 1 to 5, 45 minutes.** Before
# it: [lesson 05](../../lessons/05_buckets_and_overlap.ipynb).
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dpviz as dp
from dpviz.labs import expect
from dpviz.parallel.ddp import fill_buckets

KiB, MiB = 2**10, 2**20
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # float64
X = torch.randn(24, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def new_model(layers=8):
    """`layers` matrices of 32 x 32 numbers in float64: 8 KiB of gradient each."""
    torch.manual_seed(0)
    net = [nn.Linear(32, 32, bias=False, dtype=torch.float64) for _ in range(layers)]
    return nn.Sequential(*net)


def loss_of(model, x):
    return model(x).square().mean()


def gradients(model):
    """One flat tensor; zeros where there is no gradient."""
    each = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in each])


class Events:
    """Writes down what happens, in order.

    all_reduce(flat)   begins a sum of `flat` over ranks, in place, and returns a handle at once.
                       The sum is there when the handle's wait() returns.
    """

    def __init__(self):
        self.seen = []

    def all_reduce(self, flat):
        self.seen.append(f"begin {flat.nbytes}")
        work, events = dist.all_reduce(flat, async_op=True), self

        class Handle:
            def wait(self):
                events.seen.append(f"wait {flat.nbytes}")
                work.wait()

        return Handle()

    def after_backward(self):
        """Return what was begun, and what was waited for, before and after backward ended."""
        end = self.seen.index("backward ended")
        return self.seen[:end], self.seen[end + 1 :]


# %% [markdown]
# ## Exercise 1: fill the buckets
#
# A *bucket* is a list of parameters whose gradients travel in one message. Backward begins with the last parameter, so
# the buckets are filled from there. A parameter is never split. A bucket is closed as soon as it holds `cap` bytes or
# more, so it may exceed its cap. Eight layers of 1 MiB and a cap of 3 MiB: buckets of 3, 3 and 2 MiB.


# %% tags=["exercise", "ex1"]
def buckets_of(sizes, cap):
    """Return lists of indices. sizes[i] are the bytes of parameter i, in the model's order."""
    ### BEGIN SOLUTION
    buckets, held = [[]], 0
    for i in reversed(range(len(sizes))):
        if held >= cap:
            buckets.append([])
            held = 0
        buckets[-1].append(i)
        held += sizes[i]
    return buckets
    ### END SOLUTION


# %% tags=["check", "ex1"]
found = buckets_of([MiB] * 8, 3 * MiB)
expect.equal("the buckets of 8 layers of 1 MiB, cap 3 MiB", found, [[7, 6, 5], [4, 3, 2], [1, 0]])
found = buckets_of([100, 400, 100, 100, 300], 400)
expect.equal("the buckets of 100, 400, 100, 100, 300 bytes, cap 400", found, [[4, 3], [2, 1], [0]])
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden"]
found = [len(bucket) for bucket in buckets_of([3 * MiB // 2] * 6, 2 * MiB)]
expect.equal("parameters in the buckets of 6 layers of 1.5 MiB, cap 2 MiB", found, [2, 2, 2])
expect.equal("the buckets of 5, 50, 5 bytes, cap 10", buckets_of([5, 50, 5], 10), [[2, 1], [0]])
expect.equal("the buckets of 2 layers under a large cap", buckets_of([8, 8], MiB), [[1, 0]])
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: one message
#
# The gradients of one bucket are there. Average them over ranks with a *single* all-reduce: lay them end to end, sum,
# divide, and put each part back where it came from. They have different shapes.
#
# <details><summary>Hint</summary>
#
# `torch.cat` makes a new tensor. What you change there, no `p.grad` sees. `flat.split(sizes)` and `view_as` undo it.
#
# </details>


# %% tags=["exercise", "ex2"]
def average_bucket(parameters):
    """Replace the gradients of these parameters by their means over ranks. All of them have one."""
    ### BEGIN SOLUTION
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))
    ### END SOLUTION


# %% tags=["check", "ex2"]
def one_bucket(shapes):
    parameters = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
    for i, p in enumerate(parameters):
        p.grad = torch.arange(p.numel(), dtype=torch.float64).view_as(p) + 10 * i + dist.get_rank()
    average_bucket(parameters)
    return [p.grad for p in parameters]


for k in (2, 3):
    shapes = [(3, 4), (5,), (2, 1, 3)]
    run = dp.launch(one_bucket, shapes, world_size=k, timeout=10)
    for i, (found, shape) in enumerate(zip(run.results[1], shapes, strict=True)):
        expect.equal(f"the shape of gradient {i}", tuple(found.shape), shape)
        mean = torch.arange(found.numel(), dtype=torch.float64) + 10 * i + (k - 1) / 2
        expect.close(f"gradient {i}, the mean over {k} ranks", found.flatten(), mean)
    sent = [(entry.name, entry.payload) for entry in run.collectives[0]]
    expect.equal("collectives of rank 0 and their bytes", sent, [("all_reduce", 23 * 8)])
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: in which order?
#
# Gradients do not come in the same order on every rank. Collectives match by the order in which they are begun. So
# buckets are begun in the order of their index, whatever is full first: a full bucket waits for those before it. Bucket
# after bucket becomes full. Which are begun at that moment? Example: 1, 0, 2 become full. Begun are none, then 0 and 1,
# then 2.


# %% tags=["exercise", "ex3"]
def begun(full):
    """`full` has each of 0 to n - 1 once. Return for each of them the list of what is begun."""
    ### BEGIN SOLUTION
    lists, there, following = [], set(), 0
    for bucket in full:
        there.add(bucket)
        lists.append([])
        while following in there:
            lists[-1].append(following)
            following += 1
    return lists
    ### END SOLUTION


# %% tags=["check", "ex3"]
expect.equal("begun as 1, 0, 2 become full", begun([1, 0, 2]), [[], [0, 1], [2]])
expect.equal("begun as 0, 1, 2 become full", begun([0, 1, 2]), [[0], [1], [2]])
print("exercise 3: right")

# %% tags=["check", "ex3", "hidden"]
expect.equal("begun as 3, 2, 0, 1 become full", begun([3, 2, 0, 1]), [[], [], [0], [1, 2, 3]])
found = begun([2, 0, 1, 4, 3])
expect.equal("begun as 2, 0, 1, 4, 3 become full", found, [[], [0], [1, 2], [], [3, 4]])
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: a hook that counts
#
# `p.register_post_accumulate_grad_hook(function)` makes autograd call `function(p)` as soon as `p.grad` is there, in
# the middle of backward. Have `start(i)` called at the moment at which all gradients of bucket i are there. (The order
# of buckets is not this exercise's matter.) It must also work in the second backward, and in the third.


# %% tags=["exercise", "ex4"]
def watch(buckets, start):
    """Register hooks on the parameters in `buckets`, lists of them, that call start(i)."""
    ### BEGIN SOLUTION
    missing = [len(bucket) for bucket in buckets]

    def hook_of(i):
        def came(_):
            missing[i] -= 1
            if missing[i] == 0:
                missing[i] = len(buckets[i])
                start(i)

        return came

    for i, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(i))
    ### END SOLUTION


# %% tags=["check", "ex4"]
def watched(sizes, backwards=2):
    """Write down, at each start, the layers whose gradients are there."""
    model, seen = new_model(layers=sum(sizes)), []
    buckets = [list(part) for part in _cut([*model.parameters()][::-1], sizes)]

    def start(bucket):
        seen.append((bucket, [i for i, p in enumerate(model.parameters()) if p.grad is not None]))

    watch(buckets, start)
    for _ in range(backwards):
        model.zero_grad()
        loss_of(model, X).backward()
    return seen


def _cut(parameters, sizes):
    for size in sizes:
        yield [parameters.pop(0) for _ in range(size)]


for sizes, once in (([1, 2], [(0, [2]), (1, [0, 1, 2])]), ([2, 1, 1], None)):
    found = dp.launch(watched, sizes, world_size=2, timeout=10).results[1]
    once = once or [(0, [2, 3]), (1, [1, 2, 3]), (2, [0, 1, 2, 3])]
    expect.equal("what was started in the first backward, by then there", found[: len(once)], once)
    expect.equal("what was started in the second backward", found[len(once) :], once)
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: overlapped
#
# All of it. Fill buckets from the end of the model. In the middle of backward begin the all-reduce of each bucket that
# is full, in order. Return a function that is called after each backward: it waits for what was begun, and puts the
# means back. Some parameters may be frozen (`requires_grad` is False): they have no gradient, and no place in a bucket.
#
# `all_reduce(flat)` is handed to you: it begins, and returns a handle with `wait()`. The lab has
# `fill_buckets(parameters, cap_bytes)` for you, which fills in the order in which you give it parameters.
#
# **Target.** As many collectives and bytes as the buckets say. All but the last bucket are begun before the last
# gradient is there. Nothing is waited for before backward has ended.
#
# <details><summary>Hint</summary>
#
# Keep two things from hook to hook: how many gradients each bucket still misses, and how many buckets are begun. Both
# start anew after each backward.
#
# </details>


# %% tags=["exercise", "ex5"]
def overlapped(model, cap_bytes, all_reduce):
    """Register hooks on the model. Return finish(), to be called after each backward."""
    ### BEGIN SOLUTION
    parameters = [p for p in model.parameters() if p.requires_grad][::-1]
    buckets = fill_buckets(parameters, cap_bytes)
    bucket_of = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    sent = []

    def came(p):
        missing[bucket_of[p]] -= 1
        while len(sent) < len(buckets) and missing[len(sent)] == 0:
            flat = torch.cat([q.grad.flatten() for q in buckets[len(sent)]])
            sent.append((flat, all_reduce(flat)))

    def finish():
        for bucket, (flat, handle) in zip(buckets, sent, strict=True):
            handle.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        missing[:] = [len(bucket) for bucket in buckets]
        sent.clear()

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    return finish
    ### END SOLUTION


# %% tags=["check", "ex5", "points-2"]
def in_buckets(settings):
    model, events, rank, k = new_model(), Events(), dist.get_rank(), dist.get_world_size()
    for i in settings.get("frozen", ()):
        model[i].requires_grad_(False)
    finish = overlapped(model, settings["cap"], events.all_reduce)
    first = next(p for p in model.parameters() if p.requires_grad)
    first.register_hook(lambda _: events.seen.append("the last gradient"))
    for _ in range(2):  # two steps
        model.zero_grad()
        events.seen.clear()
        loss_of(model, X[rank::k]).backward()
        events.seen.append("backward ended")
        finish()
    return gradients(model), events.after_backward()


def check_buckets(k, settings, sizes):
    run = dp.launch(in_buckets, settings, world_size=k, timeout=10)
    alone = new_model()
    loss_of(alone, X).backward()
    for i in settings.get("frozen", ()):
        alone[i].weight.grad = None
    within, after = run.results[0][1]
    of_step = [entry.payload // KiB for entry in run.collectives[0]][-len(sizes) :]
    expect.equal("KiB of the all-reduces of a step", of_step, sizes)
    expect.equal("all-reduces of two steps", len(run.collectives[0]), 2 * len(sizes))
    before = sum(event.startswith("begin") for event in within[: within.index("the last gradient")])
    expect.at_least("all-reduces begun before the last gradient was there", before, len(sizes) - 1)
    waits = sum(event.startswith("wait") for event in within)
    expect.equal("waits before backward had ended", waits, 0)
    for rank, (found, _) in enumerate(run.results):
        expect.close(f"a gradient on rank {rank} of {k}", found, gradients(alone), **EXACT)


check_buckets(2, {"cap": 24 * KiB}, [24, 24, 16])
check_buckets(3, {"cap": 8 * KiB}, [8] * 8)
print("exercise 5: right")


# %% tags=["check", "ex5", "hidden"]
class TwoWays(nn.Module):
    """The sum of two layers. Autograd reverses the order in which forward used them."""

    def __init__(self):
        super().__init__()
        self.ways = new_model(layers=2)

    def forward(self, x):
        if dist.get_rank() == 0:
            return self.ways[0](x).tanh() + self.ways[1](x).sigmoid()
        return self.ways[1](x).sigmoid() + self.ways[0](x).tanh()


def in_another_order(config):
    model, rank, k = TwoWays(), dist.get_rank(), dist.get_world_size()
    finish = overlapped(model, 8 * KiB, Events().all_reduce)
    loss_of(model, X[rank::k]).backward()
    mine = gradients(model)
    finish()
    return gradients(model), mine


(_, one), (found, two) = dp.launch(in_another_order, world_size=2, timeout=5).results
mean = (one + two) / 2
expect.close("a gradient, another order of backward on rank 1", found, mean, **EXACT)
check_buckets(2, {"cap": 24 * KiB, "frozen": (2, 7)}, [24, 24])
print("exercise 5: right")

# %% [markdown]
# ## Extension, exercise 6: a window of K micro-batches
#
# One update of K micro-batches. `losses` is a list of K functions; each computes the loss of one micro-batch when you
# call it. In the end `p.grad` is the mean over ranks of the *sum* over micro-batches. Each bucket travels *once*, while
# the last backward still computes.
#
# A rank may have parameters that no loss depends on. They get no gradient there, and must not hold the others up:
# another rank may use them. Every rank ends with the same mean, in which the missing gradient counts as 0.
#
# <details><summary>Hint</summary>
#
# Hooks run in each of the K backwards. After the last backward some buckets may never have become full. All ranks must
# begin all buckets all the same.
#
# </details>


# %% tags=["exercise", "ex6"]
def window(model, losses, cap_bytes, all_reduce):
    """Call backward on each loss, begin each all-reduce once, leave the means in p.grad."""
    ### BEGIN SOLUTION
    parameters = [p for p in model.parameters() if p.requires_grad][::-1]
    buckets = fill_buckets(parameters, cap_bytes)
    there, sent = set(), []

    def begin():
        bucket = buckets[len(sent)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        sent.append((flat, all_reduce(flat)))

    def came(p):
        there.add(p)
        while len(sent) < len(buckets) and there.issuperset(buckets[len(sent)]):
            begin()

    for loss in losses[:-1]:
        loss().backward()
    hooks = [p.register_post_accumulate_grad_hook(came) for p in parameters]
    losses[-1]().backward()
    while len(sent) < len(buckets):
        begin()
    for bucket, (flat, handle) in zip(buckets, sent, strict=True):
        handle.wait()
        parts = (flat / dist.get_world_size()).split([p.numel() for p in bucket])
        for p, part in zip(bucket, parts, strict=True):
            p.grad = part.view_as(p).clone()
    for hook in hooks:
        hook.remove()
    ### END SOLUTION


# %% tags=["check", "ex6", "points-2"]
def in_a_window(settings):
    """K = 3 micro-batches; rank 1 does not use the layers in `skipped`."""
    events, rank, k = Events(), dist.get_rank(), dist.get_world_size()
    model = new_model()
    skipped = settings["skipped"] if rank == 1 else ()
    used = nn.Sequential(*[layer for i, layer in enumerate(model) if i not in skipped])
    losses = [lambda x=x: loss_of(used, x) / 3 for x in X[rank::k].chunk(3)]
    copy = new_model()
    theirs = nn.Sequential(*[layer for i, layer in enumerate(copy) if i not in skipped])
    losses[-1] = lambda: _noted(loss_of(used, X[rank::k].chunk(3)[2]) / 3, model[0].weight, events)
    window(model, losses, settings["cap"], events.all_reduce)
    loss_of(theirs, X[rank::k]).backward()
    return gradients(model), gradients(copy), events.seen


def _noted(loss, weight, events):
    weight.register_hook(lambda _: events.seen.append("the last gradient"))
    return loss


for skipped in ((), (6,)):
    run = dp.launch(in_a_window, {"cap": 24 * KiB, "skipped": skipped}, world_size=2, timeout=5)
    calls = [entry.payload // KiB for entry in run.collectives[0]]
    expect.equal("KiB of the all-reduces of an update", calls, [24, 24, 16])
    mean = sum(mine for _, mine, _ in run.results) / 2
    for rank, (found, _, _) in enumerate(run.results):
        expect.close(f"a gradient on rank {rank}, rank 1 without {skipped}", found, mean, **EXACT)
    seen = run.results[0][2]
    before = sum(event.startswith("begin") for event in seen[: seen.index("the last gradient")])
    expect.at_least("all-reduces begun before the last gradient was there", before, 2)
print("exercise 6: right")

# %% [markdown]
# ## Extension, exercise 7: how large?
#
# Backward takes `layer_s` seconds a layer. The link takes `latency_s` a message and carries `bytes_per_s`, one message
# after the other. Small buckets pay the latency often, a large one comes too late. Choose the cap.
#
# The check runs torch's own DDP on 2 ranks with your cap. **The seconds are emulated**: a clock of the check goes on by
# `layer_s` when backward has passed a layer, and a message has arrived when such a link would have brought it. What is
# real is when DDP sends which bucket. So the answer is the same on every machine, with a slow network or without.
#
# **Target.** Backward and its messages in at most 1.3, 1.51 and 1.1 times the computing, on three links. (On the first,
# a single bucket takes 1.68 times, and one for each layer 1.86 times.)
#
# <details><summary>Hint</summary>
#
# Walk through the buckets: bucket i begins when it is full and the link is free. When does the last one end? Try each
# cap that makes a difference.
#
# </details>


# %% tags=["exercise", "ex7"]
def choose_cap(layers, layer_bytes, *, layer_s, latency_s, bytes_per_s):
    """Return the cap in bytes at which backward, with its messages, ends soonest."""

    ### BEGIN SOLUTION
    def end(a_bucket):
        free, full = 0.0, 0
        while full < layers:
            now = min(a_bucket, layers - full)
            full += now
            free = max(free, full * layer_s) + latency_s + now * layer_bytes / bytes_per_s
        return free

    return layer_bytes * min(range(1, layers + 1), key=end)
    ### END SOLUTION


# %% tags=["check", "ex7"]
class Takes(torch.autograd.Function):
    """Nothing in forward; in backward the emulated clock goes on by `seconds`."""

    @staticmethod
    def forward(ctx, x, clock, seconds):
        ctx.clock, ctx.seconds = clock, seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock["now"] += ctx.seconds
        return gradient, None, None


class Net(nn.Module):
    def __init__(self, clock, layer_s):
        super().__init__()
        self.clock, self.layer_s = clock, layer_s
        self.layers = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(16)])

    def forward(self, x):
        for layer in self.layers:
            x = Takes.apply(layer(x), self.clock, self.layer_s)
        return x


def emulated(settings):
    """Return the emulated seconds of a backward with its messages over those of its computing."""
    clock, link = {}, settings["link"]

    def hook(state, bucket):
        flat = bucket.buffer()
        dist.all_reduce(flat)
        takes = link["latency_s"] + flat.nbytes / link["bytes_per_s"]
        clock["link is free"] = max(clock["link is free"], clock["now"]) + takes
        future = torch.futures.Future()
        future.set_result(flat / dist.get_world_size())
        return future

    net, cap_mb = Net(clock, link["layer_s"]), settings["cap"] / MiB
    model = DistributedDataParallel(net, bucket_cap_mb=cap_mb)
    model.register_comm_hook(None, hook)
    for _ in range(3):  # DDP makes its buckets after the first
        clock.update({"now": 0.0, "link is free": 0.0})
        loss_of(model, torch.randn(2, 64)).backward()
    return clock["link is free"] / clock["now"]


links = [  # each layer has 16 KiB
    {"layer_s": 0.006, "latency_s": 0.0072, "bytes_per_s": 16 * KiB / 0.0036},
    {"layer_s": 0.006, "latency_s": 0.0450, "bytes_per_s": 16 * KiB / 0.0003},
    {"layer_s": 0.006, "latency_s": 0.0006, "bytes_per_s": 16 * KiB / 0.0054},
]
for link, limit in zip(links, (1.3, 1.51, 1.1), strict=True):
    cap = choose_cap(16, 16 * KiB, **link)
    found = dp.launch(emulated, {"cap": cap, "link": link}, world_size=2, timeout=10).results[0]
    where = f"{1e3 * link['latency_s']:.1f} ms a message, cap {cap / KiB:g} KiB"
    expect.at_most(f"backward over its computing, {where}", found, limit)
print("exercise 7: right")
