"""The work that every way of running ranks is timed with: one DDP gradient on 4 ranks. One function, in a module of its
own, so that each way imports the same.
"""

import torch


def gradient(config=None):
    """Return the norm of a gradient that all ranks have averaged; the default process group is ready."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    model(torch.randn(8, 256)).pow(2).mean().backward()
    return model.module.weight.grad.norm().item()


def join(rank, world_size, store):
    """Make the process group, as a user would."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
