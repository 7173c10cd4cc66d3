"""`torchrun ... tests/cluster_facts.py WORLD_SIZE FOLDER`: some experiments in one start, each Run saved by rank 0."""

import os
import sys
from pathlib import Path

from dpviz.questions import contract, equivalence, zero
from dpviz.ranks.launch import launch

ASKED = {
    "equivalence": equivalence.Config(accumulation_steps=2, micro_batch=2, model="transformer", data="text"),
    "contract": contract.Config(fault="scheduler_steps_k_times", fault_rank=0, steps=4),
    "zero": zero.Config(stage=3, layers=2, width=16, steps=2),
}


def run(name, **options):
    return launch(f"dpviz.experiments.{name}:experiment", ASKED[name], **options)


if __name__ == "__main__":
    world_size, folder = int(sys.argv[1]), Path(sys.argv[2])
    for name in ASKED:
        found = run(name, world_size=world_size)
        if os.environ["RANK"] == "0":
            found.save(folder / f"{name}.json")
