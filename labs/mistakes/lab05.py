"""Wrong answers that students give in lab 5, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "makes every gradient max_norm long, short ones too",
        "code": """
def clip(vector, max_norm):
    return vector * max_norm / vector.norm()
""",
        "says": r"\(0, 0.2\) clipped to length 1: measured 1, expected 0.2",
    },
    {
        "exercise": 1,
        "name": "clips each entry",
        "code": """
def clip(vector, max_norm):
    return vector.clamp(-max_norm, max_norm)
""",
        "says": r"\(3, 4\) clipped to length 1: measured 1, expected 0.6",
    },
    {
        "exercise": 2,
        "name": "clips, then averages",
        "code": """
def average_and_clip(model, max_norm):
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
    average_over_ranks(model)
    return norm
""",
        "says": r"the gradient of \(30, 40\) and .*, on rank 0: measured 0.2, expected 0.794187",
    },
    {
        "exercise": 2,
        "name": "clips each parameter by its own length",
        "code": """
def average_and_clip(model, max_norm):
    average_over_ranks(model)
    return max(nn.utils.clip_grad_norm_([p], max_norm).item() for p in model.parameters())
""",
        "says": r"the gradient of \(30, 40\) and .*, on rank 0: measured 1, expected 0.607673",
    },
    {
        "exercise": 3,
        "name": "each rank clips by its own shard's norm",
        "code": """
def clip_shard(shard, max_norm):
    return shard * (max_norm / shard.norm()).clamp(max=1.0)
""",
        "says": r"the gradient \(3, 4\) in two shards, clipped to 1: measured 1, expected 0.6",
    },
    {
        "exercise": 3,
        "name": "adds up lengths instead of squares",
        "code": """
def clip_shard(shard, max_norm):
    norm = shard.norm()
    dist.all_reduce(norm)
    return shard * (max_norm / norm).clamp(max=1.0)
""",
        "says": r"the gradient \(3, 4\) in two shards, clipped to 1: measured 0.571429, expected 0.8",
    },
    {
        "exercise": 4,
        "name": "clips the scaled gradient",
        "code": """
def unscale_and_clip(model, scale, max_norm):
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= scale
""",
        "says": r"the length of the true gradient \(0.3, 0.4\): measured 1.52588e-05, expected 0.5",
    },
    {
        "exercise": 5,
        "name": "the rank that overflows decides alone",
        "code": """
def decide(gradients, scale):
    overflow = not all(g.isfinite().all() for g in gradients)
    return not overflow, scale / 2 if overflow else scale
""",
        "says": r"rank 1 of 2 overflows: measured \[\(True, 1024.0\), \(False, 512.0\)\], expected",
    },
    {
        "exercise": 5,
        "name": "takes the average of the flags",
        "code": """
def decide(gradients, scale):
    overflow = torch.tensor(float(not all(g.isfinite().all() for g in gradients)))
    dist.all_reduce(overflow)
    overflow = bool(overflow / dist.get_world_size() == 1)
    return not overflow, scale / 2 if overflow else scale
""",
        "says": r"rank 1 of 2 overflows: measured \[\(True, 1024.0\), \(True, 1024.0\)\], expected",
    },
    {
        "exercise": 5,
        "name": "looks for infinity only",
        "code": """
def decide(gradients, scale):
    overflow = torch.tensor(float(any(g.isinf().any() for g in gradients)))
    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    return not overflow, scale / 2 if overflow else scale
""",
        "says": r"rank 0 of 3 not a number, a shard empty: measured \[\(True, 1024.0\)",
    },
    {
        "exercise": 6,
        "name": "steps the schedule in every micro-batch",
        "code": """
def train_on_schedule(model, optimizer, scheduler, micro_batches, K):
    for number, (x, y) in enumerate(micro_batches, start=1):
        (models.loss(model, x, y) / K).backward()
        if number % K == 0:
            average_over_ranks(model)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
""",
        "says": "the learning rate of update 0, k = 2, K = 4: measured 0.997781, expected 1",
    },
    {
        "exercise": 6,
        "name": "steps the schedule k times an update",
        "code": """
def train_on_schedule(model, optimizer, scheduler, micro_batches, K):
    for first in range(0, len(micro_batches), K):
        optimizer.zero_grad()
        for x, y in micro_batches[first : first + K]:
            (models.loss(model, x, y) / K).backward()
        average_over_ranks(model)
        optimizer.step()
        for _ in range(dist.get_world_size()):
            scheduler.step()
""",
        "says": "the learning rate of update 25, k = 2, K = 4: measured 0.5, expected 0.853553",
    },
    {
        "exercise": 7,
        "name": "each rank decides before the average",
        "code": """
def update(model, optimizer, scheduler, scaler, *, max_norm):
    overflow = not all(parameter.grad.isfinite().all() for parameter in model.parameters())
    average_over_ranks(model)
    for parameter in model.parameters():
        parameter.grad /= scaler.scale
    if not overflow:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    optimizer.zero_grad()
    scaler.update(overflow)
    scheduler.step()
""",
        "says": r"loss scales on rank 0 of 2, update by update: measured \[1024.0, 1024.0, 2048.0, 2048.0",
    },
    {
        "exercise": 7,
        "name": "clips before unscaling",
        "code": """
def update(model, optimizer, scheduler, scaler, *, max_norm):
    average_over_ranks(model)
    overflow = not all(parameter.grad.isfinite().all() for parameter in model.parameters())
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for parameter in model.parameters():
        parameter.grad /= scaler.scale
    if not overflow:
        optimizer.step()
    optimizer.zero_grad()
    scaler.update(overflow)
    scheduler.step()
""",
        "says": "a parameter on rank 0 of 2, after 8 updates: measured",
    },
    {
        "exercise": 8,
        "name": "skips on the rank that overflows, alone",
        "code": """
def update_shard(shard, optimizer, scaler, *, max_norm):
    shard.grad /= scaler.scale
    overflow = not shard.grad.isfinite().all()
    square = shard.grad.nan_to_num(0, 0, 0).square().sum()
    dist.all_reduce(square)
    if not overflow:
        shard.grad *= (max_norm / square.sqrt()).clamp(max=1.0)
        optimizer.step()
    optimizer.zero_grad()
    scaler.update(overflow)
""",
        "says": r"loss scales, shards of \[3, 4\]: measured",
    },
]
