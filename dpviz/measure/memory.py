"""What autograd keeps between forward and backward: a rank's activations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


class Kept:
    """The storages that autograd has saved for backward, each counted once; `bytes` is their size."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self.storages.values())


@contextlib.contextmanager
def kept_for_backward(without: Iterable[torch.Tensor]) -> Iterator[Kept]:
    """Count what a forward inside keeps; the tensors `without` (parameters, inputs) are there anyway.

    What torch.utils.checkpoint drops and computes again is not kept, and not counted.
    """
    there = {tensor.untyped_storage().data_ptr() for tensor in without}
    kept, alive = Kept(), []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            kept.storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no address is used twice while we count
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield kept
