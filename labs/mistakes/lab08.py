"""Wrong answers that students give in lab 8, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "the world size in place of the data-parallel size",
        "code": """
def accumulation_steps(samples, *, world_size, micro_batch, tp=1, pp=1):
    return -(-samples // (world_size * micro_batch))
""",
        "says": "samples counted in a step, 4 ranks, tp = 2: measured 8, expected 16",
    },
    {
        "exercise": 1,
        "name": "rounds down",
        "code": """
def accumulation_steps(samples, *, world_size, micro_batch, tp=1, pp=1):
    return samples // (world_size // tp // pp * micro_batch)
""",
        "says": "K for 100 samples, 8 ranks, B = 3: measured 4, expected 5",
    },
    {
        "exercise": 2,
        "name": "forgets the float32 masters",
        "code": """
def state_bytes(N, k, stage):
    return [12 * N, 4 * N + 8 * N / k, 2 * N + 10 * N / k, 12 * N / k][stage]
""",
        "says": "GB of state, 7 billion parameters, 8 ranks, stage 0: measured 84, expected 112",
    },
    {
        "exercise": 2,
        "name": "divides gradients under stage 1",
        "code": """
def state_bytes(N, k, stage):
    return [16 * N, 2 * N + 14 * N / k, 2 * N + 14 * N / k, 16 * N / k][stage]
""",
        "says": "8 ranks, stage 1: measured 26.25, expected 38.5",
    },
    {
        "exercise": 3,
        "name": "ZeRO-2 halves the traffic",
        "code": """
def traffic_bytes(N, k, stage, K=1):
    return [2, 2, 1, 3][stage] * (k - 1) / k * 2 * N
""",
        "says": "bytes by your formula, against those sent, stage 2: measured 6602, expected 13204",
    },
    {
        "exercise": 3,
        "name": "takes the traffic of stages 2 and 3 for independent of K",
        "code": """
def traffic_bytes(N, k, stage, K=1):
    return [2, 2, 2, 3][stage] * (k - 1) / k * 2 * N
""",
        "says": "the same, stage 2, K = 4: measured 13204, expected 33010",
    },
    {
        "exercise": 3,
        "name": "two models, whatever k is",
        "code": """
def traffic_bytes(N, k, stage, K=1):
    return [2, 2, K + 1, 3 * K][stage] * 2 * N
""",
        "says": "bytes by your formula, against those sent, stage 0: measured 26408, expected 13204",
    },
    {
        "exercise": 4,
        "name": "takes Gb/s for GB/s",
        "code": """
def step_seconds(N, k, *, tokens, link_gbps, flops_per_s):
    return 2 * (k - 1) / k * 2 * N / (link_gbps * 1e9), 6 * N * tokens / flops_per_s
""",
        "says": "seconds of the all-reduce, 7 billion, 8 ranks, 400 Gb/s: measured 0.06125, expected 0.49",
    },
    {
        "exercise": 5,
        "name": "forgets the activations",
        "code": """
def fitting(N, k, *, memory_gb, activations_gb):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    return [stage for stage in range(4) if state[stage] <= memory_gb * 1e9]
""",
        "says": "13 billion, 8 cards of 80 GB, 40 GB of activations: measured .1, 2, 3., expected .3.",
    },
    {
        "exercise": 5,
        "name": "divides the activations by k under stage 3",
        "code": """
def fitting(N, k, *, memory_gb, activations_gb):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    activations = [activations_gb * 1e9] * 2 + [activations_gb * 1e9 / k] * 2
    return [stage for stage in range(4) if state[stage] + activations[stage] <= memory_gb * 1e9]
""",
        "says": "13 billion, 8 cards of 80 GB, 40 GB of activations: measured .2, 3., expected .3.",
    },
    {
        "exercise": 5,
        "name": "takes GiB for GB",
        "code": """
def fitting(N, k, *, memory_gb, activations_gb):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    return [stage for stage in range(4) if state[stage] <= (memory_gb - activations_gb) * 2**30]
""",
        "says": "what fits into 62,000 bytes by you, against what 2 ranks held: measured .2, 3., expected .3.",
    },
    {
        "exercise": 6,
        "name": "takes the lowest stage that fits, whatever it sends",
        "code": """
def plan(N, k, *, samples, memory_bytes, sample_bytes):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    for stage in range(4):
        for B in range(samples // k, 0, -1):
            if samples % (k * B) == 0 and state[stage] + B * sample_bytes <= memory_bytes:
                K = samples // (k * B)
                return zero.Config(stage=stage, micro_batch=B, accumulation_steps=K, **SMALL)
    raise ValueError("nothing fits")
""",
        "says": "sent by a rank of 2, 61,000 bytes of memory: measured 4.5 P, and at most 3.01 P is allowed",
    },
    {
        "exercise": 6,
        "name": "forgets the activations",
        "code": """
def plan(N, k, *, samples, memory_bytes, sample_bytes):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    for stage in range(4):
        if state[stage] <= memory_bytes:
            return zero.Config(stage=stage, micro_batch=samples // k, accumulation_steps=1, **SMALL)
    raise ValueError("nothing fits")
""",
        "says": "held by a rank of 2: measured .* bytes, and at most 69,000 bytes is allowed",
    },
    {
        "exercise": 6,
        "name": "fills the card with one micro-batch and lets the global batch be what it becomes",
        "code": """
def plan(N, k, *, samples, memory_bytes, sample_bytes):
    state = [16 * N, 4 * N + 12 * N / k, 2 * N + 14 * N / k, 16 * N / k]
    for stage in range(4):
        B = min(256, int((memory_bytes - state[stage]) // sample_bytes))
        if B > 0:
            return zero.Config(stage=stage, micro_batch=B, accumulation_steps=max(1, samples // (k * B)), **SMALL)
    raise ValueError("nothing fits")
""",
        "says": "samples that 2 ranks took in a step: measured 50, expected 32",
    },
    {
        "exercise": 7,
        "name": "forgets that the batch must come out even",
        "code": """
def least_ranks(N, *, memory_bytes, activation_bytes, samples, micro_batch):
    return int(-(-16 * N // (memory_bytes - activation_bytes)))
""",
        "says": "samples left over by the micro-batches of all ranks: measured 8, expected 0",
    },
    {
        "exercise": 8,
        "name": "forgets that a message is a k-th of the bucket",
        "code": """
def bucket_bytes(k, *, latency_s, link_gbps, share):
    return latency_s * (1 - share) / share * link_gbps * 1e9 / 8
""",
        "says": "MB of a bucket, 8 ranks, 20 microseconds, 400 Gb/s, a tenth: measured 9, expected 72",
    },
    {
        "exercise": 8,
        "name": "takes the share of latency over transfer, not over both",
        "code": """
def bucket_bytes(k, *, latency_s, link_gbps, share):
    return k * latency_s / share * link_gbps * 1e9 / 8
""",
        "says": "MB of a bucket, 8 ranks, 20 microseconds, 400 Gb/s, a tenth: measured 80, expected 72",
    },
]
