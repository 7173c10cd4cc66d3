"""A small DDP model, trained for some steps by plain torch: what measuring is timed with. As a script it is bare:

    python training.py RANKS STEPS

runs it on ranks that torch spawns, and prints the seconds of each rank's steps as JSON. Nothing here knows dpviz.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gradient import join
from torch import nn

WIDTH, SAMPLES = 256, 32
FIRST = 3  # steps that are not timed: after the first DDP rebuilds its buckets


def model():
    """Return the model, wrapped, and its optimizer."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1)


def batch():
    return torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1 + dist.get_rank()))


def step(ddp, optimizer, x):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()


def timed(steps):
    """Train and return the seconds of each step but the first ones."""
    (ddp, optimizer), x, seconds = model(), batch(), []
    for _ in range(FIRST + steps):
        start = time.perf_counter()
        step(ddp, optimizer, x)
        seconds.append(time.perf_counter() - start)
    return seconds[FIRST:]


def work(rank, world_size, steps, folder):
    join(rank, world_size, f"{folder}/store")
    Path(folder, f"{rank}.json").write_text(json.dumps(timed(steps)))


if __name__ == "__main__":
    ranks, steps = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (ranks, steps, folder), nprocs=ranks)
        print(json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]))
