"""Ranks that this process is itself: the one rank of world size 1, or one of those that torchrun has started.

Only torchrun's ranks have a choice of backend and device: see `devices.py`.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from dpviz.questions.base import WrongValue
from dpviz.ranks import hosts
from dpviz.ranks.devices import on_device, wire_of
from dpviz.ranks.ongoing import Outcome
from dpviz.records import Wire


def launcher() -> str:
    """Return "torchrun" where torchrun has started this process, else ""."""
    # as torch.distributed.is_torchelastic_launched does, without importing torch
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else ""


def run(
    experiment: Any,
    config: Any,
    *,
    world_size: int,
    timeout: float,
    on_record,
    backend: str = "gloo",
    device: str = "cpu",
) -> tuple[Outcome, list, int]:
    """Run the experiment as the rank that this process is. Returns the outcome and the records of every rank, on
    every rank, and on how many hosts they are.

    Raises ValueError where torchrun has started another number of ranks than `world_size`, or where the ranks of
    several hosts would talk over the loopback.
    """
    import torch.distributed as dist

    from dpviz import seeds
    from dpviz.measure import collectives, counted, destroyed, wire
    from dpviz.ranks import rank

    records: list[Any] = []

    def keep(record: Any) -> None:
        records.append(record)
        on_record(dist.get_rank(), record)

    recorder, counters = collectives.Recorder(), wire.Counters()
    group = _group(world_size, timeout, counters, backend, device)
    with wire_of(backend), group, destroyed.kept(counters), seeds.kept(), _one_thread():
        # What is not the experiment's goes over a group of its own, which is not counted;
        # gloo also where the default group is nccl
        counters.since_last()
        side = dist.new_group(backend="gloo")
        dist.barrier(side)
        counters.ignore()
        recorder.since_last()
        seeds.reset()
        with on_device(device):
            result = rank.run(experiment, config, on_record=keep)
        if not dist.is_initialized():
            raise WrongValue("the experiment has destroyed the process group. Leave that to the launcher.")
        issued = recorder.since_last()
        dist.barrier(side)  # every rank has returned, and so has sent what the others needed
        if wire.how() == wire.COUNTED:
            sent = counted.wire(issued, dist.get_rank(), world_size, backend=backend)
        else:
            sent = Wire(**dict(zip(("sent", "received"), counters.since_last(), strict=True)))
        everyone: list[Any] = [None] * world_size
        dist.all_gather_object(everyone, (result, sent, issued, records, hosts.this_one()), group=side)
        dist.destroy_process_group(side)
    *outcome, of_ranks, places = map(list, zip(*everyone, strict=True))
    return Outcome(*outcome), of_ranks, len(set(places))


@contextlib.contextmanager
def _group(world_size: int, timeout: float, counters, backend: str, device: str) -> Iterator[None]:
    """Have a default group: the one there is, torchrun's, or one of this process alone (taken down again, the
    environment put back).
    """
    import torch.distributed as dist

    from dpviz.ranks import rank

    if launcher() and not dist.is_initialized():
        counters.ignored_port = int(os.environ["MASTER_PORT"])
        with on_device(device):
            _join_torchruns(timeout, backend)
    if dist.is_initialized():
        if dist.get_world_size() != world_size:
            raise WrongValue(
                f"world_size is {world_size}, but {launcher() or 'the process group'} has {dist.get_world_size()} "
                "ranks; give that number."
            )
        if dist.get_backend() != backend:
            raise WrongValue(
                f"backend is {backend}, but the process group that there is has {dist.get_backend()}; give that one."
            )
        yield
        return
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = rank.LOOPBACK
    with tempfile.TemporaryDirectory(prefix="dpviz-") as directory:
        try:
            rank.join_group(0, 1, os.path.join(directory, "alone"), timeout)
            yield
        finally:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
            if dist.is_initialized():
                dist.destroy_process_group()
            if before is not None:
                os.environ["GLOO_SOCKET_IFNAME"] = before


def _join_torchruns(timeout: float, backend: str) -> None:
    """Make the default process group of the ranks that torchrun has started; they meet at its store."""
    import torch.distributed as dist

    from dpviz.measure import wire

    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(wire.recorder_entries()))
    limit = datetime.timedelta(seconds=timeout)
    store, rank, world_size = next(dist.rendezvous("env://", timeout=limit))
    hosts.check_interface(dist.PrefixStore("hosts", store), rank, world_size)
    dist.init_process_group(
        backend, store=dist.PrefixStore("default", store), rank=rank, world_size=world_size, timeout=limit
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread and torch's default type, as every other rank does, and put both back."""
    import torch

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
