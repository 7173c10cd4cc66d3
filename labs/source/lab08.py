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
# # Lab 8. Plan a run
#
# A model, cards with so much memory, a link, a global batch. Which ZeRO stage, which micro-batch B, how many
# accumulation steps K? You write the formulas one by one. The checks hold them against runs: a small model is really
# trained on k ranks, and its bytes are read. At the end a function of yours makes the plan, and the plan is run.
# **Core: exercises 1 to 6, 45 minutes.** Before it: [lesson 08](../../lessons/08_zero.ipynb) and
# [lesson 13](../../lessons/13_on_a_cluster.ipynb).
#
# N parameters in bfloat16, trained by AdamW with float32 masters: 2 + 2 bytes for a parameter and its gradient, 4 for
# the master, 8 for the moments. P = 2N bytes of gradients. k ranks. 1 GB is 10⁹ bytes.
#
# Write into the cells marked *your code*. Run a check by its cell; it prints *right*, or says what was measured.

# %%
import functools

import torch.distributed as dist

import dpviz as dp
from dpviz.experiments import buckets, equivalence, mesh, zero
from dpviz.labs import expect

GB = 10**9
SMALL = {"mixed_precision": True, "layers": 1, "width": 32, "steps": 1}
N_SMALL = 6602  # its parameters


@functools.cache
def measured(stage, k=2, K=1, B=8):
    """Train the small model under a ZeRO stage on k ranks. Return the facts that were measured."""
    config = zero.Config(stage=stage, accumulation_steps=K, micro_batch=B, **SMALL)
    return dp.launch(zero.experiment, config, world_size=k, timeout=20).facts


def sent(facts):
    """Bytes that a rank sent in a step, without gloo's headers: the most of all ranks."""
    headers = facts["framing_bytes_predicted"]
    return max(a - b for a, b in zip(facts["wire_bytes"], headers, strict=True))


def held(facts):
    """Bytes that a rank holds: its model state, and what autograd keeps of a micro-batch."""
    return max(map(sum, zip(facts["model_state_bytes"], facts["activation_bytes"], strict=True)))


# %% [markdown]
# ## Exercise 1: how many micro-batches
#
# The recipe asks for `samples` a step. The run has `world_size` ranks. Of these, `tp` share each matrix, and `pp` hold
# different layers of one model. What is the least K with which a step takes `samples` or more? Example: 256 samples,
# 4 ranks, B = 2, no other axes: 32.


# %% tags=["exercise", "ex1"]
def accumulation_steps(samples, *, world_size, micro_batch, tp=1, pp=1):
    """Return K, the micro-batches of one rank and step."""
    ### BEGIN SOLUTION
    dp_size = world_size // (tp * pp)
    return -(-samples // (dp_size * micro_batch))
    ### END SOLUTION


# %% tags=["check", "ex1"]
expect.equal("K for 256 samples", accumulation_steps(256, world_size=4, micro_batch=2), 32)
K = accumulation_steps(16, world_size=4, micro_batch=2, tp=2)
axes = {"dp": 2, "tp": 2, "pp": 1}
config = mesh.Config(**axes, micro_batch=2, accumulation_steps=K, layers=1, width=8, steps=2)
facts = dp.launch(mesh.experiment, config, timeout=20).facts
expect.equal("samples counted in a step, 4 ranks, tp = 2", facts["distinct_samples"], 16)
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden"]
found = accumulation_steps(64, world_size=16, micro_batch=2, tp=2, pp=2)
expect.equal("K for 64 samples, 16 ranks, tp = 2, pp = 2", found, 8)
found = accumulation_steps(100, world_size=8, micro_batch=3)
expect.equal("K for 100 samples, 8 ranks, B = 3", found, 5)
print("exercise 1: right")

# %% [markdown]
# ## Exercise 2: the model state
#
# What does a rank hold under stage 0, 1, 2 and 3? Stage 1 divides masters and moments, stage 2 gradients too, stage 3
# parameters too. Activations come later.


# %% tags=["exercise", "ex2"]
def state_bytes(N, k, stage):
    """Return the bytes of model state that one of k ranks holds, a number."""
    ### BEGIN SOLUTION
    return [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k][stage]
    ### END SOLUTION


# %% tags=["check", "ex2"]
for stage, gigabytes in enumerate([112, 38.5, 26.25, 14]):
    found = state_bytes(7e9, 8, stage) / GB
    expect.close(f"GB of state, 7 billion parameters, 8 ranks, stage {stage}", found, gigabytes)
for stage in range(4):
    facts = measured(stage)
    formula = state_bytes(facts["parameters"], 2, stage)
    what = f"bytes by your formula, against those read on 2 ranks, stage {stage}"
    expect.close(what, formula, facts["model_state_bytes"][0], rtol=0.002)  # padding
print("exercise 2: right")

# %% tags=["check", "ex2", "hidden"]
for stage in (1, 2):
    what = f"bytes by your formula, against those read on 4 ranks, stage {stage}"
    real = measured(stage, k=4)["model_state_bytes"][0]
    expect.close(what, state_bytes(N_SMALL, 4, stage), real, rtol=0.002)
print("exercise 2: right")

# %% [markdown]
# ## Exercise 3: what travels
#
# How many bytes does a rank send in one step of K micro-batches? A reduce-scatter of P bytes sends (k - 1)/k · P, an
# all-gather as much, an all-reduce twice that.
#
# - Stage 0 all-reduces once. Stage 1 reduce-scatters once, and gathers the new parameters.
# - Stage 2 reduces as soon as it has gradients, at *every* micro-batch, and gathers the new parameters.
# - Stage 3 does so too, but gathers what it needs for each forward and again for each backward, and not after the step.
#
# <details><summary>Hint</summary>
#
# Count calls, in units of (k - 1)/k · P. For K = 1 three of the four stages cost the same.
#
# </details>


# %% tags=["exercise", "ex3"]
def traffic_bytes(N, k, stage, K=1):
    """Return the bytes that one of k ranks sends in a step, all of it bfloat16."""
    ### BEGIN SOLUTION
    return [2, 2, K + 1, 3 * K][stage] * (k - 1) / k * 2 * N
    ### END SOLUTION


# %% tags=["check", "ex3"]
for stage in range(4):
    formula, real = traffic_bytes(N_SMALL, 2, stage), sent(measured(stage))
    what = f"bytes by your formula, against those sent, stage {stage}"
    expect.close(what, formula, real, rtol=0.01)
for stage in (2, 3):
    formula, real = traffic_bytes(N_SMALL, 2, stage, K=4), sent(measured(stage, K=4, B=2))
    expect.close(f"the same, stage {stage}, K = 4", formula, real, rtol=0.01)
print("exercise 3: right")

# %% tags=["check", "ex3", "hidden"]
for stage, gigabytes in enumerate([24.5, 24.5, 24.5, 36.75]):
    found = traffic_bytes(7e9, 8, stage) / GB
    expect.close(f"GB sent, 7 billion parameters, 8 ranks, stage {stage}", found, gigabytes)
expect.close("GB sent, stage 1, K = 8", traffic_bytes(7e9, 8, 1, K=8) / GB, 24.5)
real = sent(measured(3, k=4, K=2, B=2))
formula = traffic_bytes(N_SMALL, 4, 3, K=2)
expect.close("bytes by your formula, stage 3, 4 ranks", formula, real, rtol=0.01)
print("exercise 3: right")

# %% [markdown]
# ## Exercise 4: how long
#
# A step of plain data parallelism: the ranks compute, then all-reduce, nothing overlapped. Computing takes 6N
# operations a token. The link is given in Gb/s, latency is left out.


# %% tags=["exercise", "ex4"]
def step_seconds(N, k, *, tokens, link_gbps, flops_per_s):
    """Return (seconds of the all-reduce, seconds of computing), `tokens` being one rank's."""
    ### BEGIN SOLUTION
    sent = 2 * (k - 1) / k * 2 * N
    return sent / (link_gbps * 1e9 / 8), 6 * N * tokens / flops_per_s
    ### END SOLUTION


# %% tags=["check", "ex4"]
found = step_seconds(7e9, 8, tokens=2**20, link_gbps=400, flops_per_s=1e14)
expect.close("seconds of the all-reduce, 7 billion, 8 ranks, 400 Gb/s", found[0], 0.49)
expect.close("seconds of computing on 2^20 tokens", found[1], 440.4, rtol=1e-3)
print("exercise 4: right")

# %% tags=["check", "ex4", "hidden"]
found = step_seconds(13e9, 2, tokens=8192, link_gbps=25, flops_per_s=2e14)
expect.close("seconds of the all-reduce, 13 billion, 2 ranks, 25 Gb/s", found[0], 8.32)
expect.close("seconds of computing on 8192 tokens", found[1], 3.19488)
print("exercise 4: right")

# %% [markdown]
# ## Exercise 5: which stage fits
#
# A card has `memory_gb`. It holds the model state, and `activations_gb`, which no stage divides. Which stages fit?


# %% tags=["exercise", "ex5"]
def fitting(N, k, *, memory_gb, activations_gb):
    """Return the list of the stages that fit, in order; an empty one if none does."""
    ### BEGIN SOLUTION
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    room = (memory_gb - activations_gb) * 1e9
    return [stage for stage in range(4) if state[stage] <= room]
    ### END SOLUTION


# %% tags=["check", "ex5"]
found = fitting(13e9, 8, memory_gb=80, activations_gb=40)
expect.equal("what fits, 13 billion, 8 cards of 80 GB, 40 GB of activations", found, [3])
expect.equal("what fits, without them", fitting(13e9, 8, memory_gb=80, activations_gb=0), [1, 2, 3])
for limit in (62_000, 72_000):
    really = [stage for stage in range(4) if held(measured(stage)) <= limit]
    activations = measured(0)["activation_bytes"][0]
    found = fitting(N_SMALL, 2, memory_gb=limit / GB, activations_gb=activations / GB)
    expect.equal(f"what fits into {limit:,} bytes by you, against what 2 ranks held", found, really)
print("exercise 5: right")

# %% tags=["check", "ex5", "hidden"]
found = fitting(7e9, 8, memory_gb=80, activations_gb=43)
expect.equal("what fits, 7 billion, 8 cards of 80 GB, 43 GB of activations", found, [2, 3])
found = fitting(70e9, 8, memory_gb=80, activations_gb=0)
expect.equal("what fits, 70 billion, 8 cards of 80 GB", found, [])
print("exercise 5: right")

# %% [markdown]
# ## Exercise 6: the plan
#
# Choose the stage, B and K for the small model on k ranks. A step takes exactly `samples`. A rank holds its model state
# and `sample_bytes` of activations for each sample of a micro-batch, and no more than `memory_bytes`. Of all plans that
# fit, return one that *sends least*. The check runs it: bytes held, samples taken and bytes sent are measured.
#
# Return `zero.Config(stage=..., micro_batch=..., accumulation_steps=..., **SMALL)`. Raise ValueError if nothing fits.
# You may call what you wrote above.
#
# <details><summary>Hint</summary>
#
# There are few plans: four stages, and each B that divides the samples of a rank. Try them all. A larger B needs fewer
# micro-batches, and K costs something under two of the stages.
#
# </details>


# %% tags=["exercise", "ex6"]
def plan(N, k, *, samples, memory_bytes, sample_bytes):
    """Return the zero.Config that fits and sends least."""
    ### BEGIN SOLUTION
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    plans = []
    for stage in range(4):
        for B in range(1, samples // k + 1):
            K, left = divmod(samples, k * B)
            if left == 0 and state[stage] + B * sample_bytes <= memory_bytes:
                plans.append(([2, 2, K + 1, 3 * K][stage], stage, K, B))
    if not plans:
        raise ValueError("nothing fits")
    _, stage, K, B = min(plans)
    return zero.Config(stage=stage, micro_batch=B, accumulation_steps=K, **SMALL)
    ### END SOLUTION


# %% tags=["check", "ex6", "points-3"]
def samples_taken(given):
    """What each rank reads in a step, counted."""
    rank, k = dist.get_rank(), dist.get_world_size()
    return sum(len(x) for x, _ in equivalence.micro_batches(given["plan"], 0, rank, k))


def check_plan(samples, memory_bytes, limit, k=2):
    config = plan(N_SMALL, k, samples=samples, memory_bytes=memory_bytes, sample_bytes=556)
    taken = sum(dp.launch(samples_taken, {"plan": config}, world_size=k, timeout=20).results)
    expect.equal(f"samples that {k} ranks took in a step", taken, samples)
    facts = measured(config.stage, k=k, K=config.accumulation_steps, B=config.micro_batch)
    expect.at_most(f"held by a rank of {k}", held(facts), memory_bytes, unit="bytes")
    what = f"sent by a rank of {k}, {memory_bytes:,} bytes of memory"
    expect.at_most(what, sent(facts) / (2 * N_SMALL), limit, unit="P")


for memory_bytes, limit in ((120_000, 1.01), (69_000, 1.01), (61_000, 3.01)):
    check_plan(32, memory_bytes, limit)
print("exercise 6: right")

# %% tags=["check", "ex6", "hidden"]
check_plan(24, 38_000, 2.26, k=4)
try:
    found = plan(N_SMALL, 2, samples=32, memory_bytes=50_000, sample_bytes=556)
except ValueError:
    found = "ValueError"
expect.equal("the plan for 50,000 bytes", found, "ValueError")
print("exercise 6: right")

# %% [markdown]
# ## Extension, exercise 7: how many ranks
#
# You may choose k as well. What is the least number of ranks on which the model fits under stage 3, and which share the
# batch evenly, with micro-batches of `micro_batch`? Then compare with `python -m dpviz plan --params 70e9
# --activations-gb 20`.


# %% tags=["exercise", "ex7"]
def least_ranks(N, *, memory_bytes, activation_bytes, samples, micro_batch):
    """Return the least k that fits and whose k * micro_batch divides `samples`; else None."""
    ### BEGIN SOLUTION
    for k in range(1, samples // micro_batch + 1):
        if samples % (k * micro_batch) == 0 and 16 * N / k + activation_bytes <= memory_bytes:
            return k
    return None
    ### END SOLUTION


# %% tags=["check", "ex7"]
card = {"memory_bytes": 80 * GB, "activation_bytes": 20 * GB}
found = least_ranks(70e9, **card, samples=19 * 32, micro_batch=2)
expect.equal("ranks for 70 billion parameters, 608 samples", found, 19)
found = least_ranks(N_SMALL, memory_bytes=40_000, activation_bytes=4420, samples=32, micro_batch=8)
expect.at_most("held by a rank", held(measured(3, k=found)), 40_000, unit="bytes")
expect.equal("samples left over by the micro-batches of all ranks", 32 % (found * 8), 0)
expect.equal("ranks for the small model", found, 4)
print("exercise 7: right")

# %% tags=["check", "ex7", "hidden"]
found = least_ranks(70e9, **card, samples=1024, micro_batch=2)
expect.equal("ranks for 70 billion parameters, 1024 samples", found, 32)
found = least_ranks(70e9, **card, samples=16, micro_batch=1)
expect.equal("ranks for 70 billion parameters, 16 samples", found, None)
print("exercise 7: right")

# %% [markdown]
# ## Extension, exercise 8: how large a bucket
#
# A ring all-reduce of S bytes takes 2 (k - 1) messages, one after the other. Each takes `latency_s`, and then S/k bytes
# pass at the link's rate. Which is the smallest bucket whose all-reduce spends at most `share` of its time on latency?
# The check also gives your bucket to torch's DDP, and reads what it makes of it.


# %% tags=["exercise", "ex8"]
def bucket_bytes(k, *, latency_s, link_gbps, share):
    """Return S in bytes, a number."""
    ### BEGIN SOLUTION
    return k * latency_s * (1 - share) / share * link_gbps * 1e9 / 8
    ### END SOLUTION


# %% tags=["check", "ex8"]
found = bucket_bytes(8, latency_s=20e-6, link_gbps=400, share=0.1)
expect.close("MB of a bucket, 8 ranks, 20 microseconds, 400 Gb/s, a tenth", found / 1e6, 72)
found = bucket_bytes(2, latency_s=1e-3, link_gbps=1, share=0.5)
config = buckets.Config(bucket_cap_mb=found / 2**20, layers=8, width=128, batch=4, repeats=1)
made = dp.launch(buckets.experiment, config, world_size=2, timeout=20).facts["bucket_bytes"]
expect.equal("bytes of DDP's buckets, layers of 65,536 bytes", made, [4 * 65536] * 2)
print("exercise 8: right")

# %% tags=["check", "ex8", "hidden"]
found = bucket_bytes(4, latency_s=50e-6, link_gbps=10, share=0.2)
expect.close("MB of a bucket, 4 ranks, 50 microseconds, 10 Gb/s, a fifth", found / 1e6, 1)
print("exercise 8: right")
