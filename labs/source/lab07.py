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
# # Lab 7. Find the broken rank
#
# A training run on four ranks ended without an error, and something was wrong with one of them. You write the
# instruments that find it: fingerprints, a vote, a check against the written schedule. Then you point them at real runs
# in which a fault is hidden, drawn anew each time. **Core: exercises 1 to 7, 45 minutes.** Before it:
# [lesson 11](../../lessons/11_the_dp_contract.ipynb).
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import random

import torch
import torch.distributed as dist
from torch import nn

import dpviz as dp
from dpviz.experiments.contract import Config
from dpviz.labs import expect
from dpviz.questions.optimizer_state import FAULTS

EVERY_RANK = {"no_all_reduce", "scheduler_steps_k_times", "same_dropout_mask", "none"}
FROM_THE_START = {"different_init", "scheduler_steps_k_times", "same_dropout_mask"}


def run_with(fault, k, *, rank=0, step=3):
    """Train 6 steps with this fault; return what the ranks recorded, and the schedule."""
    config = Config(fault=fault, fault_rank=rank, fault_step=step, steps=6)
    run = dp.launch("dpviz.experiments.contract:experiment", config, world_size=k, timeout=10)
    return run.contract["consistency"]["steps"], run.contract["update"]["schedule"]


def hidden_runs(faults, k):
    """Yield (recorded steps, schedule, the truth), one a fault, of a rank and step drawn anew."""
    faults = random.sample(faults, len(faults))
    ranks = {fault: random.randrange(k) for fault in faults}
    ranks[next(fault for fault in faults if fault not in EVERY_RANK)] = 0  # whom nobody suspects
    for fault, rank in ranks.items():
        step = random.choice([3, 4])
        where = None if fault in EVERY_RANK else rank
        when = 0 if fault in FROM_THE_START else None if fault == "none" else step
        yield *run_with(fault, k, rank=rank, step=step), (fault, where, when)


def model_of(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(dtype)


# %% [markdown]
# ## Exercise 1: a fingerprint
#
# Stand for a list of tensors by a short string. It is the same wherever the tensors are equal bit for bit, also in
# another process tomorrow. It differs as soon as one bit does, or the order. Any dtype may come. dpviz has such a
# function for its own runs; the point is to write it.
#
# <details><summary>Hint</summary>
#
# Python's `hashlib` reads bytes, and a tensor can be looked at as bytes by `view(torch.uint8)`. numpy does not know
# bfloat16.
#
# </details>


# %% tags=["exercise", "ex1"]
def digest(tensors):
    """Return a string of at most 16 characters."""
    ### BEGIN SOLUTION
    import hashlib

    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:16]
    ### END SOLUTION


# %% tags=["check", "ex1"]
def digests_on_ranks(config):
    model = model_of()
    if dist.get_rank() == 1:  # the smallest change there is
        last = model[2].bias.data[-1:]
        last.copy_(torch.nextafter(last, last + 1))
    return digest(model.parameters())


found = dp.launch(digests_on_ranks, world_size=3, timeout=5).results
expect.equal("whether the fingerprint is a string", isinstance(found[0], str), True)
expect.at_most("its length", len(found[0]), 16, unit="characters")
expect.equal("whether rank 2 has rank 0's, of equal parameters", found[2] == found[0], True)
expect.equal("whether rank 1 has rank 0's, one bit being different", found[1] == found[0], False)
here = digest(model_of().parameters())
expect.equal("whether this process finds that of rank 0", here == found[0], True)
swapped = digest([torch.tensor([1.0, 2.0])]) == digest([torch.tensor([2.0, 1.0])])
expect.equal("whether (1, 2) and (2, 1) have one fingerprint", swapped, False)
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden"]
half = [*model_of(dtype=torch.bfloat16).parameters()]
before = digest(half)
half[1].data[3] += 0.5
same = digest(half) == before
expect.equal("whether a bfloat16 model keeps its fingerprint after an edit", same, False)
square = torch.arange(6.0).view(2, 3)
across = digest([square.t()]) == digest([square.t().clone(memory_format=torch.contiguous_format)])
expect.equal("whether a view has the fingerprint of its copy", across, True)
zeros = digest([torch.tensor([0.0])]) == digest([torch.tensor([-0.0])])
expect.equal("whether 0.0 and -0.0 have one fingerprint", zeros, False)
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: a cheap fingerprint
#
# At 5T parameters nobody hashes every bit in every step. A *probe* looks at `values` places only. They are drawn from
# `seed` (the step's number), anew for each seed and alike on all ranks, whatever the ranks have drawn before. The
# tensors count as laid end to end, and every place is equally likely. What is drawn elsewhere must not change by it.
#
# Goal: with 100 places of 1,000, one lone edited value is seen in about one step of ten.


# %% tags=["exercise", "ex2"]
def probe(tensors, *, seed, values):
    """Return a string for at most `values` numbers of the tensors; there may be fewer in all."""
    ### BEGIN SOLUTION
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(flat), generator=generator)[:values]
    return str(flat[places].tolist())
    ### END SOLUTION


# %% tags=["check", "ex2"]
def probes_on_ranks(config):
    model = model_of()
    dp.seed_by_rank()  # as for dropout: from here on each rank draws its own
    before = torch.get_rng_state(), random.getstate()
    found = [probe(model.parameters(), seed=step, values=8) for step in range(4)]
    after = torch.get_rng_state(), random.getstate()
    return found, torch.equal(before[0], after[0]) and before[1] == after[1]


(one, kept), (two, _) = dp.launch(probes_on_ranks, world_size=2, timeout=5).results
expect.equal("whether ranks with equal parameters agree", one == two, True)
expect.equal("whether rank 0's random state is as before", kept, True)


def steps_that_see(place):
    """Count the steps of 400 that see an edit of the value at `place`, of 1,000."""
    found = []
    for edit in (0.0, 1.0):
        flat = torch.zeros(1000)
        flat[place] = edit
        tensors = [flat[:300], flat[300:900].view(30, 20), flat[900:]]
        found.append([probe(tensors, seed=step, values=100) for step in range(400)])
    return sum(one != other for one, other in zip(*found, strict=True))


for place in (0, 555, 999):
    seen = steps_that_see(place)
    expect.at_least(f"steps of 400 that see an edit at place {place}", seen, 12)
    expect.at_most(f"steps of 400 that see an edit at place {place}", seen, 90)
print("exercise 2: right")

# %% tags=["check", "ex2", "hidden"]
tensors = [[torch.arange(5.0), torch.tensor([last])] for last in (1.0, 1.0, 2.0)]
one, same, other = (probe(some, seed=1, values=500) for some in tensors)
expect.equal("whether equal tensors of 6 values agree in 500 places", one == same, True)
expect.equal("whether different ones do", one == other, False)
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: a vote
#
# Each rank has put a value on record, and all should be equal. Who is wrong? The value that most ranks have is taken
# for right. Where none leads, every rank is a suspect.


# %% tags=["exercise", "ex3"]
def minority(values):
    """Return the ranks that are off, in order; `values` are hashable, those of rank 0, 1, ..."""
    ### BEGIN SOLUTION
    from collections import Counter

    counted = Counter(values).most_common()
    if len(counted) == 1:
        return []
    leads = counted[0][1] > counted[1][1]
    return [rank for rank, value in enumerate(values) if not leads or value != counted[0][0]]
    ### END SOLUTION


# %% tags=["check", "ex3"]
def with_one_edit(guilty):
    from dpviz.measure import fingerprint  # not at the top: exercise 1 is to write one

    model = model_of()
    model[0].weight.data[3, 5] += 1e-3 * (dist.get_rank() == guilty)
    return fingerprint.digest(model.parameters())


for guilty in (2, 0):
    found = dp.launch(with_one_edit, guilty, world_size=4, timeout=5).results
    expect.equal(f"ranks off, where rank {guilty} of 4 was edited", minority(found), [guilty])
expect.equal("ranks off, where all agree", minority(["a", "a", "a"]), [])
expect.equal("ranks off, of a and b on two ranks", minority(["a", "b"]), [0, 1])
print("exercise 3: right")

# %% tags=["check", "ex3", "hidden"]
expect.equal("ranks off, of b, a, c, a", minority(["b", "a", "c", "a"]), [0, 2])
expect.equal("ranks off, of a, b, b, a", minority(["a", "b", "b", "a"]), [0, 1, 2, 3])
expect.equal("ranks off, of 1.0, 1.0, 0.5", minority([1.0, 1.0, 0.5]), [2])
expect.equal("ranks off, of one rank", minority(["a"]), [])
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: a written rule
#
# A vote is no use where all ranks make the same mistake. The learning rate can be held against the schedule, a cosine
# `{"lr": at the start, "steps": in all}`. After u updates it must be lr · (1 + cos(π u / steps)) / 2. One recorded step
# looks like this: `{"number": 3, "values": {"lr": [of rank 0, of rank 1, ...], ...}}`. Steps are numbered from 0, and
# each is recorded after its update.
#
# <details><summary>Hint</summary>
#
# How many updates have been made at the end of step 0? And are two floats ever to be compared by ==?
#
# </details>


# %% tags=["exercise", "ex4"]
def off_schedule(step, schedule):
    """Return the ranks whose learning rate is not the schedule's, to a millionth of its start."""
    ### BEGIN SOLUTION
    import math

    angle = math.pi * (step["number"] + 1) / schedule["steps"]
    due = schedule["lr"] * (1 + math.cos(angle)) / 2
    rates = step["values"]["lr"]
    return [rank for rank, lr in enumerate(rates) if abs(lr - due) > 1e-6 * schedule["lr"]]
    ### END SOLUTION


# %% tags=["check", "ex4"]
steps, schedule = run_with("none", 2)
found = [off_schedule(step, schedule) for step in steps]
expect.equal("ranks off, step by step, where nothing is wrong", found, [[]] * 6)
steps, schedule = run_with("lr_differs", 3, rank=1, step=4)
found = [off_schedule(step, schedule) for step in steps[:5]]
expect.equal("ranks off, where rank 1 doubles its rate in step 4", found, [[]] * 4 + [[1]])
steps, schedule = run_with("scheduler_steps_k_times", 2)
found = off_schedule(steps[0], schedule)
expect.equal("ranks off in step 0, where both step the schedule twice", found, [0, 1])
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: what should differ
#
# Dropout masks are drawn. If two ranks drop the same units, half of the noise is lost, and no comparison of parameters
# sees it. Find the ranks that share a value.


# %% tags=["exercise", "ex5"]
def shared(values):
    """Return the ranks that have the value of another rank, in order."""
    ### BEGIN SOLUTION
    from collections import Counter

    counts = Counter(values)
    return [rank for rank, value in enumerate(values) if counts[value] > 1]
    ### END SOLUTION


# %% tags=["check", "ex5"]
def masks(seeds):
    from dpviz.measure import fingerprint

    torch.manual_seed(seeds[dist.get_rank()])
    return fingerprint.digest([nn.functional.dropout(torch.ones(256), 0.2) == 0])


cases = {(5, 5, 5): [0, 1, 2], (5, 6, 7): [], (8, 5, 6, 5): [1, 3]}
for seeds, due in cases.items():
    found = dp.launch(masks, seeds, world_size=len(seeds), timeout=5).results
    expect.equal(f"ranks that share a mask, seeded {seeds}", shared(found), due)
print("exercise 5: right")

# %% tags=["check", "ex5", "hidden"]
expect.equal("ranks that share, of a, b, a, b, c", shared(["a", "b", "a", "b", "c"]), [0, 1, 2, 3])
print("exercise 5: right")

# %% [markdown]
# ## Exercise 6: where it began
#
# From here on `compare.unequal`, `compare.off_schedule(rates, updates=u, schedule=...)` and `compare.shared` do what
# exercises 3 to 5 ask. Use yours or these.
#
# A symptom that you see in step 90 began somewhere. `steps` is the record of a run, in order, each step as in exercise
# 4. What stands in `SAME` should be equal on all ranks. Return the first step in which any of it is not, and the ranks
# that the vote finds there. `run_with("skipped_step", 3, rank=1)[0]` is a record to look at.

# %%
compare = dp.contract.compare
SAME = ("step", "lr", "scaler", "tokens", "gradients", "optimizer", "parameters")


# %% tags=["exercise", "ex6"]
def first_divergence(steps):
    """Return (number of the step, ranks in order), or None where the ranks never part."""
    ### BEGIN SOLUTION
    for step in steps:
        ranks = {rank for name in SAME for rank in compare.unequal(step["values"][name])}
        if ranks:
            return step["number"], sorted(ranks)
    return None
    ### END SOLUTION


# %% tags=["check", "ex6"]
parting = ["skipped_step", "token_weights_differ", "schedule_by_own_tokens"]
for steps, _, (fault, rank, number) in hidden_runs(parting, 3):
    found = first_divergence(steps)
    expect.equal(f"first step and ranks of a run with {fault}", found, (number, [rank]))
steps, _ = run_with("none", 3)
expect.equal("first step and ranks of a run without a fault", first_divergence(steps), None)
print("exercise 6: right")

# %% tags=["check", "ex6", "hidden"]
steps, _ = run_with("no_all_reduce", 3, step=4)
found = first_divergence(steps[2:])
expect.equal("first step and ranks, a record from step 2 on, no_all_reduce", found, (4, [0, 1, 2]))
print("exercise 6: right")

# %% [markdown]
# ## Exercise 7: the diagnosis
#
# Now the whole case. One of six faults is hidden in a run, on a rank and from a step on that are drawn anew each time
# you run the check. You get the record and the schedule. Say which fault, which rank, and the first wrong step.
#
# `same_dropout_mask` is every rank's: its rank is `None`, and its step 0. Beside what `SAME` names the record has
# `dropout`, a fingerprint of each rank's mask.
#
# <details><summary>Hint</summary>
#
# One cause, many symptoms. For each fault ask what it changes *first*: `run_with(fault, 4, rank=2)` gives you a record
# to look at. Then look for causes before consequences.
#
# </details>

# %%
SIX = ["skipped_step", "overflow_on_one_rank", "lr_differs", "token_weights_differ"]
SIX += ["edited_parameter", "same_dropout_mask"]
for fault in SIX:
    print(f"{fault:22}{FAULTS[fault]}")


# %% tags=["exercise", "ex7"]
def diagnose(steps, schedule):
    """Return (fault, rank, number of the step)."""
    ### BEGIN SOLUTION
    causes = {
        "scaler": "overflow_on_one_rank",
        "step": "skipped_step",
        "lr": "lr_differs",
        "tokens": "token_weights_differ",
        "parameters": "edited_parameter",
    }
    for step in steps:
        if compare.shared(step["values"]["dropout"]):
            return "same_dropout_mask", None, step["number"]
        for name, fault in causes.items():
            ranks = compare.unequal(step["values"][name])
            if ranks:
                return fault, ranks[0], step["number"]
    ### END SOLUTION


# %% tags=["check", "ex7", "points-3"]
for steps, schedule, truth in hidden_runs(SIX, 4):
    expect.equal("the diagnosis of a run of 4 ranks", diagnose(steps, schedule), truth)
print("exercise 7: right")

# %% tags=["check", "ex7", "hidden"]
for steps, schedule, truth in hidden_runs(random.sample(SIX, 3), 3):
    expect.equal("the diagnosis of a run of 3 ranks", diagnose(steps, schedule), truth)
print("exercise 7: right")

# %% [markdown]
# ## Extension, exercise 8: thirteen faults, or none
#
# As exercise 7, with seven faults more, and runs in which nothing is wrong: these are `("none", None, None)`. For a
# fault of every rank the rank is `None`: `no_all_reduce`, `scheduler_steps_k_times`, `same_dropout_mask`. What was
# wrong from the start was so in step 0. The first recorded step also has `initial`, a fingerprint of the parameters
# before it.
#
# <details><summary>Hint</summary>
#
# Several faults move the count of updates, the loss scale or the learning rate. Which *other* value parts in the same
# step, and which does not?
#
# </details>

# %%
MORE = ["no_all_reduce", "different_init", "scheduler_steps_k_times", "schedule_by_own_tokens"]
MORE += ["stale_checkpoint", "resume_without_optimizer", "resume_without_scaler", "none"]
for fault in MORE:
    print(f"{fault:26}{FAULTS[fault]}")


# %% tags=["exercise", "ex8"]
def diagnose_all(steps, schedule):
    """Return (fault, rank or None, number of the step or None)."""
    ### BEGIN SOLUTION
    causes = {  # what parts together in the first step; the more telling before the less
        "same_dropout_mask": ["dropout"],
        "different_init": ["initial"],
        "scheduler_steps_k_times": ["lr of all"],
        "stale_checkpoint": ["step", "lr"],
        "overflow_on_one_rank": ["scaler", "step"],
        "resume_without_scaler": ["scaler"],
        "skipped_step": ["step"],
        "lr_differs": ["lr", "parameters"],
        "schedule_by_own_tokens": ["lr"],
        "token_weights_differ": ["tokens"],
        "no_all_reduce": ["gradients"],
        "resume_without_optimizer": ["optimizer"],
        "edited_parameter": ["parameters"],
    }
    for step in steps:
        number, values = step["number"], step["values"]
        off = {name: compare.unequal(of_ranks) for name, of_ranks in values.items()}
        rates = compare.off_schedule(values["lr"], updates=number + 1, schedule=schedule)
        off |= {"dropout": compare.shared(values["dropout"]), "lr": rates}
        off["lr of all"] = rates if len(rates) == len(values["lr"]) else []
        for fault, names in causes.items():
            if all(off.get(name) for name in names):
                ranks = off[names[0]]
                return fault, ranks[0] if len(ranks) == 1 else None, number
    return "none", None, None
    ### END SOLUTION


# %% tags=["check", "ex8", "points-2"]
for steps, schedule, truth in hidden_runs(MORE + random.sample(SIX, 2), 3):
    expect.equal("the diagnosis of a run of 3 ranks", diagnose_all(steps, schedule), truth)
print("exercise 8: right")
