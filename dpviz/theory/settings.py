"""What to write for a plan's choice: DDP, FSDP2, or a DeepSpeed file. Text to copy; nothing here runs it."""

from __future__ import annotations

import json

_DDP = """\
model = torch.nn.parallel.DistributedDataParallel(model)
# every micro-batch but the last:  with model.no_sync(): loss = ...; loss.backward()"""

_ZERO_1 = (
    _DDP
    + """
optimizer = torch.distributed.optim.ZeroRedundancyOptimizer(
    model.parameters(), torch.optim.AdamW, lr=lr)  # sends 3, not 2, times (k-1)/k * P: DDP still reduces everything"""
)

_FSDP2 = """\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy, reshard_after_forward={reshard})
fully_shard(model, mp_policy=policy, reshard_after_forward={reshard})  # {why}
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)  # after fully_shard: it sees the shards"""


def settings(plan, accumulation_steps: int) -> dict[str, str]:
    """Return {"torch": code, "deepspeed": a JSON file's text} for the stage that the plan chose, {} where none fits."""
    if plan.choice is None:
        return {}
    code = {
        0: _DDP,
        1: _ZERO_1,
        2: _FSDP2.format(reshard=False, why="parameters stay whole after forward"),
        3: _FSDP2.format(reshard=True, why="each layer is gathered, used and freed"),
    }
    return {"torch": code[plan.choice], "deepspeed": _deepspeed(plan.choice, accumulation_steps)}


def _deepspeed(stage: int, accumulation_steps: int) -> str:
    zero = {"stage": stage, "overlap_comm": True}
    if stage == 3:
        zero["stage3_prefetch_bucket_size"] = 50_000_000
    return json.dumps(
        {
            "bf16": {"enabled": True},
            "gradient_accumulation_steps": accumulation_steps,
            "zero_optimization": zero,
        },
        indent=2,
    )
