"""What a rank holds: what autograd keeps between forward and backward (its activations), and every tensor over time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class Watch(TorchDispatchMode):
    """Within `with Watch(...) as watch:` notes after each operation how many bytes this rank's tensors hold.

    kinds      {name: tensors} of what is there already and is to be told apart, such as parameters; it may be counted
               again by `mark`. What autograd keeps for backward is "activations", every other tensor that is made
               meanwhile "other": buffers of messages, temporaries, what an operation has just returned
    samples    (seconds since the start, {name: bytes}) of every moment at which a total changed
    peak       the largest total of them, in bytes

    Storages are counted once, with the size they have now (freed ones shrink to nothing). What an operation needs only
    within itself is not seen: these are tensors, not the process's memory. Of a DTensor the local tensor is counted.
    """

    def __init__(self, kinds: dict[str, Iterable[torch.Tensor]]) -> None:
        super().__init__()
        self.known: dict[int, tuple[StorageWeakRef, str]] = {}
        self.samples: list[tuple[float, dict[str, int]]] = []
        self.looks, self.began = True, time.perf_counter()
        for kind, tensors in kinds.items():
            self.mark(kind, tensors)
        self._sample()

    @property
    def peak(self) -> int:
        return max(sum(held.values()) for _, held in self.samples)

    def over_time(self) -> dict:
        """Return {"peak": bytes, "times": [seconds], "held": {kind: [bytes]}}, for a figure."""
        kinds = sorted({kind for _, held in self.samples for kind in held})
        return {
            "peak": self.peak,
            "times": [seconds for seconds, _ in self.samples],
            "held": {kind: [held.get(kind, 0) for _, held in self.samples] for kind in kinds},
        }

    def mark(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors under this name from now on."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.known[storage._cdata] = (StorageWeakRef(storage), kind)

    @contextlib.contextmanager
    def looking_away(self) -> Iterator[None]:
        """Notes nothing meanwhile: for code that asks what there is, and computes nothing."""
        self.looks = False
        yield
        self.looks = True

    def __enter__(self):
        self.saving = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self.saving.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.saving.__exit__(*error)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        _, kind = self.known.get(tensor.untyped_storage()._cdata, (None, "other"))
        if kind == "other":
            self.mark("activations", [tensor])
        return tensor

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor claims the bytes of the whole: let it act, and see what its parts do
        result = function(*args, **(kwargs or {}))
        if not self.looks:
            return result
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known or self.known[storage._cdata][0].expired():
                    self.known[storage._cdata] = (StorageWeakRef(storage), "other")
        self._sample()
        return result

    def _sample(self) -> None:
        held: dict[str, int] = {}
        for key, (reference, kind) in list(self.known.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.known[key]
            else:
                held[kind] = held.get(kind, 0) + storage.nbytes()
        if not self.samples or self.samples[-1][1] != held:
            self.samples.append((time.perf_counter() - self.began, held))


@contextlib.contextmanager
def watched(
    held: Callable[[], dict[str, Iterable[torch.Tensor]]],
    *,
    gathered: Iterable[torch.Tensor],
    leaves: Iterable[torch.Tensor],
) -> Iterator[Watch]:
    """Watch a step of training, telling its gradients apart as they come.

    held      tells what there is of the model state now: {kind: tensors}, "gradients" among them
    gathered  whole parameters of which this rank keeps a shard: they hold memory while they are used
    leaves    the tensors that autograd brings gradients to
    """
    watch = Watch({"gathered": gathered, **held()})

    def came(gradient: torch.Tensor) -> None:  # whole, on its way to be reduced
        with watch.looking_away():
            watch.mark("gradients", [gradient, *held()["gradients"]])  # those before it have left their shards by now

    handles = [leaf.register_hook(came) for leaf in leaves]
    try:
        with watch:
            yield watch
    finally:
        for handle in handles:
            handle.remove()


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of these tensors, those that share one counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}.values())
