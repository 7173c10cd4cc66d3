"""The work that every way of running ranks is timed with: one DDP gradient. One function, in a module of its own, so
that each way imports the same. Each rank has data of its own: ranks that forget to average find another gradient.
"""

import torch

SAMPLES, WIDTH = 8, 256  # of one rank's batch


def gradient(config=None):
    """Return the norm of a gradient that all ranks have averaged; the default process group is ready."""
    model = torch.nn.parallel.DistributedDataParallel(_model())
    _loss(model, _batch(torch.distributed.get_rank())).backward()
    return model.module.weight.grad.norm().item()


def of_the_whole_batch(k):
    """Return what `gradient` must return on each of k ranks, found by one process on all their samples."""
    model = _model()
    _loss(model, torch.cat([_batch(rank) for rank in range(k)])).backward()
    return model.weight.grad.norm().item()


def join(rank, world_size, store):
    """Make the process group, as a user would."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)


def _model():
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WIDTH)


def _batch(rank):
    return torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1 + rank))


def _loss(model, x):
    return model(x).pow(2).mean()
