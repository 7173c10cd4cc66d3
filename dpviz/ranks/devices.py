"""What torchrun's ranks may choose: gloo or nccl, and whether tensors lie in the host's memory or on a GPU.

An experiment does not know: it makes its tensors on torch's default device, which is set here round it. The pool, and
the one rank of a notebook, are gloo on the CPU. None of the code for GPUs has been run on one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dpviz.questions.base import WrongValue

BACKENDS, DEVICES = ("gloo", "nccl"), ("cpu", "cuda")


def check(backend: str, device: str, *, launcher: str) -> None:
    """Raise ValueError, a sentence, where these ranks cannot have this backend and device."""
    if backend not in BACKENDS:
        raise WrongValue(f"backend is {backend!r}, but it must be one of {', '.join(BACKENDS)}.")
    if device not in DEVICES:
        raise WrongValue(f"device is {device!r}, but it must be one of {', '.join(DEVICES)}.")
    if backend == "nccl" and device != "cuda":
        raise WrongValue(f"backend is nccl, which carries only what lies on GPUs, but device is {device}. Give cuda.")
    if (backend, device) == ("gloo", "cpu"):
        return
    if not launcher:
        raise WrongValue(
            f"backend is {backend} and device is {device}, but ranks that torchrun has not started are gloo on cpu. "
            "Leave both out, or start the ranks: torchrun --standalone --nproc-per-node 2 -m dpviz run ..."
        )
    import torch

    count, local = torch.cuda.device_count() if torch.cuda.is_available() else 0, _local_rank()
    if not count:
        raise WrongValue(
            f"device is cuda, but torch {torch.__version__} finds no GPU on this host. "
            "Leave device out, or see what torch.cuda.is_available() needs (a driver, and a CUDA build of torch)."
        )
    if local >= count:
        raise WrongValue(
            f"local rank {local} has no GPU to itself: this host has {count}. "
            f"Start at most that many ranks a host: --nproc-per-node {count}."
        )


@contextlib.contextmanager
def on_device(device: str) -> Iterator[None]:
    """Have torch make tensors on this rank's own device, and the default put back at the end."""
    if device == "cpu":
        yield
        return
    import torch

    # Without this every rank of a host would use GPU 0, whatever its tensors say: nccl asks for the current device
    torch.cuda.set_device(_local_rank())
    with torch.device(device, _local_rank()):
        yield


@contextlib.contextmanager
def wire_of(backend: str) -> Iterator[None]:
    """Have bytes counted where nccl carries them: what goes by NVLink or by InfiniBand passes no TCP connection."""
    before = os.environ.get("DPVIZ_WIRE")
    if backend == "nccl":
        os.environ["DPVIZ_WIRE"] = "counted"
    try:
        yield
    finally:
        os.environ.pop("DPVIZ_WIRE", None)
        if before is not None:
            os.environ["DPVIZ_WIRE"] = before


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
