"""What `python -m dpviz plan` asks: a model, its ranks and their hardware. The answer is modelled, see theory.plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Checked, number, whole
from dpviz.theory import plan as theory
from dpviz.theory.settings import settings

KS = (1, 2, 4, 8, 16, 64, 256, 2048)  # ranks, from one core to two thousand GPUs
PRESETS = {"7B": 7e9, "13B": 13e9, "70B": 70e9, "5T": 5e12}


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    params: float = number(
        7e9, low=1.0, high=1e15, help="parameters of the model, N; trained by AdamW in bfloat16/float32"
    )
    world_size: int = whole(8, low=1, high=1_000_000, help="ranks that hold and update it together, k")
    memory_gb: float = number(80.0, low=0.001, high=1e6, help="memory of each, GB (10^9 bytes)")
    activations_gb: float = number(0.0, low=0.0, high=1e6, help="activations of one micro-batch, GB")
    headroom_gb: float = number(0.0, low=0.0, high=1e6, help="what is to stay free, GB")
    accumulation_steps: int = whole(1, low=1, high=1_000_000, help="micro-batches a rank and step, K")
    tokens: int = whole(8192, low=1, high=10**9, help="tokens of one rank's micro-batch")
    link_gbps: float = number(400.0, low=0.001, high=1e6, help="each rank's link, 10^9 bits a second")
    flops_per_s: float = number(1e14, low=1.0, high=1e18, help="operations a second that a rank really does")
    largest_batch_tokens: float = number(
        0.0, low=0.0, high=1e12, help="largest global batch that still pays, in tokens; 0 where it is not known"
    )

    def plan(self) -> theory.Plan:
        fields = dataclasses.asdict(self)
        return theory.plan(
            parameters=fields.pop("params"), largest_batch_tokens=fields.pop("largest_batch_tokens") or None, **fields
        )

    def plans(self) -> dict[int, theory.Plan]:
        """Return the plan for each of KS ranks, whatever world_size is: what figures/stage_map.py draws."""
        return {k: dataclasses.replace(self, world_size=k).plan() for k in KS}

    def answer(self) -> dict[str, Any]:
        """Return what the command line prints with --json."""
        made = self.plan()
        return {
            "config": dataclasses.asdict(self),
            **dataclasses.asdict(made),
            "settings": settings(made, self.accumulation_steps),
        }
